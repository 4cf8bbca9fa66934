"""Collects finished runs for the results pages: a few dozen kilobytes per run, no weights, no outputs.

``python -m results_pages.collect RUN_OR_PARENT … METRICS`` writes

METRICS/STREAM/RUN/metrics.parquet    accuracy, AUROC and FPR@95 (at 95 % OOD recall), enough for every table
                   manifest.json      makes it a run directory that `tood report` reads
                   collected.json     diagnostics that need the outputs: drift, energies, distances
METRICS/scores.csv, runs.csv          runs on frozen features, by track
METRICS/toy.json, toy.png             of `tood toy --authors`, if a folder given has them
"""

from __future__ import annotations

import json
import math
import shutil
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from results_pages.benchmark import collect_lines
from tood.energy import energy
from tood.evaluation.metrics_file import RAW, load_metrics, save_metrics
from tood.metrics import nearest_distance
from tood.outputs.directory import Run, find_runs
from tood.outputs.steps import Step
from tood.report.gather import MeasuredRun
from tood.storage.files import file_name, write_text

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["Collected", "along", "collect", "collect_runs", "collect_toy", "read_collected"]

KEPT = ("accuracy", "auroc", "fpr_at_ood_recall")
SHOWN = "svhn"  # the OOD set whose distances the paper shows
MOST_NEAREST = 2000  # OOD samples per step whose nearest ID sample is searched


class Collected(NamedTuple):
    """A collected run."""

    run: Run
    table: Any
    point: dict[str, Any]  # values for plots over learners
    along: dict[str, list[float]]  # diagnostics per step; empty if the run had no outputs

    @property
    def preset(self) -> str:
        """The preset it was trained with."""
        return str(self.run.manifest.get("preset") or "unknown")


def read_collected(folder: Path) -> list[Collected]:
    """All runs in a folder written by :func:`collect_runs`."""
    collected = []
    for run in find_runs([folder]):
        file = run.path / "collected.json"
        kept = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
        collected.append(Collected(run, load_metrics(run.path), kept.get("point") or {}, kept.get("along") or {}))
    return collected


def collect(paths: Iterable[Path], metrics: Path) -> int:
    """Collect everything that is finished in some folders; returns the number of runs."""
    paths = list(paths)
    runs = [run for run in find_runs(paths) if run.metrics_path.exists()]
    frozen = [run for run in runs if run.manifest.get("preset") == "frozen"]
    collect_lines(frozen, metrics)
    collect_runs([run for run in runs if run not in frozen or run.steps()], metrics)
    for path in paths:
        if (path / "toy" / "toy.json").exists():
            collect_toy(path / "toy", metrics)
    return len(runs)


def collect_runs(runs: Iterable[Run], folder: Path) -> None:
    """Copy what tables and claims need of measured runs."""
    for run in runs:
        target = folder / file_name(run.stream) / run.path.name
        target.mkdir(parents=True, exist_ok=True)
        measured = MeasuredRun(run)
        # JSON has no NaN, such as the drift of a run without features.
        point = {name: None if _is_nan(value) else value for name, value in measured.point().items()}
        save_metrics(_shown(measured.table), target / "metrics.parquet")
        shutil.copyfile(run.path / "manifest.json", target / "manifest.json")
        write_text(target / "collected.json", json.dumps({"point": point, "along": along(measured)}, indent=1) + "\n")


def along(measured: MeasuredRun) -> dict[str, list[float]]:
    """Diagnostics per step; empty without outputs.

    ``task0_energy``, ``ood_energy``
        Mean energy of task 0 and of the OOD sets.
    ``nearest``
        Median distance of SVHN (or another far-OOD set) to the nearest ID sample. Only with features.
    """
    run, values = measured.run, {}
    if not measured.has_outputs:
        return {}
    far = [name for name, group in run.ood.items() if group == "far"] or list(run.ood)
    shown = SHOWN if SHOWN in run.ood else far[-1]
    for step in (Step(run, index) for index in range(measured.steps)):
        task0 = energy(step.test.logits)[step.test_tasks() == 0]
        values.setdefault("task0_energy", []).append(float(task0.mean()))
        by_set = [energy(outputs.logits).mean() for outputs in step.ood.values()]
        values.setdefault("ood_energy", []).append(float(np.mean(by_set)))
        if step.has("features"):
            ood = np.asarray(step.ood[shown].features)[:MOST_NEAREST]
            distances = nearest_distance(ood, np.asarray(step.test.features))
            values.setdefault("nearest", []).append(float(np.median(distances)))
    return values


def collect_toy(source: Path, folder: Path) -> None:
    """Copy ``toy.json`` without its single runs, and the figure."""
    kept = json.loads((source / "toy.json").read_text(encoding="utf-8")) | {"runs": []}
    folder.mkdir(parents=True, exist_ok=True)
    write_text(folder / "toy.json", json.dumps(kept, indent=1, ensure_ascii=False) + "\n")
    if (source / "toy.png").exists():
        shutil.copyfile(source / "toy.png", folder / "toy.png")


def _shown(table: pa.Table) -> pa.Table:
    """The rows that tables show: every detector with default settings, on corrected and on raw logits."""
    import pyarrow as pa
    import pyarrow.compute as pc

    default = pc.is_in(table["settings"], pa.array(["", RAW]))
    return table.filter(pc.and_(pc.is_in(table["metric"], pa.array(KEPT)), default)).combine_chunks()


def _is_nan(value: Any) -> bool:
    return isinstance(value, float) and math.isnan(value)


if __name__ == "__main__":
    *given, target = map(Path, sys.argv[1:])
    print(f"{collect(given, target)} runs")

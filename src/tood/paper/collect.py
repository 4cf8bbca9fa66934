"""Collect the metrics of finished runs for docs/results: a few dozen kilobytes per run, no weights, no outputs.

FOLDER/STREAM/RUN/metrics.parquet    accuracy, AUROC and FPR@95 (at 95 % OOD recall), enough for every table
                  manifest.json      makes it a run directory that `tood report` reads
                  collected.json     the commit, diagnostics that need the outputs (drift, energies, distances), and
                                     numbers that the learner computed at each step (WA's alignment factor)
FOLDER/figures/STREAM/*.png          figures over learners, of ablations, and of the run that the paper shows
FOLDER/ablations.md                  summary of the ablations
"""

from __future__ import annotations

import json
import math
import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from tood.files import file_name, write_text
from tood.report.gather import Measured
from tood.runs.directory import Run, find_runs
from tood.runs.figures_only import step_facts
from tood.runs.metrics_file import load_metrics, save_metrics

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["Collected", "collect_figures", "collect_runs", "current_commit", "read_collected"]

KEPT = ("accuracy", "auroc", "fpr_at_ood_recall")
SETTINGS = ("", '{"logits": "raw"}')  # the second: BiC before its bias correction
ROUND_ABOVE = 200_000  # bytes: a larger metrics.parquet is rounded
OF_ONE_RUN = [f"cifar10/icarl/{name}.png" for name in ("task0", "ridges", "tsne", "nearest")]  # shown in the paper


class Collected(NamedTuple):
    """A collected run."""

    run: Run
    table: Any
    commit: str  # of the code that collected the run
    point: dict[str, Any]  # values for figures over learners
    along: dict[str, list[float]]  # diagnostics per step; empty if the run had no outputs
    facts: tuple[dict[str, float], ...] = ()  # the learner's own numbers, per step

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
        commit, point, along = kept.get("commit") or "unknown", kept.get("point") or {}, kept.get("along") or {}
        collected.append(Collected(run, load_metrics(run.path), commit, point, along, tuple(kept.get("facts") or ())))
    return collected


def collect_runs(runs: Iterable[Run], folder: Path, commit: str) -> list[str]:
    """Collect measured runs; returns the names of those that were new or had changed.

    Parameters
    ----------
    runs:
        Runs; those without a ``metrics.parquet`` are skipped.
    folder:
        Target folder.
    commit:
        Commit of the code that made them; see :func:`current_commit`.
    """
    copied = []
    for run in runs:
        if not run.metrics_path.exists():
            continue
        target = Path(folder) / file_name(run.stream) / run.path.name
        table, measured = _slim(load_metrics(run.path)), Measured(run)
        point = {name: _plain(value) for name, value in measured.point().items()}
        kept: dict[str, Any] = {"point": point, "along": measured.along()}
        facts = [step_facts(run, step) for step in range(measured.steps)]
        kept |= {"facts": facts} if any(facts) else {}
        if _unchanged(target, run, table, kept):
            continue
        target.mkdir(parents=True, exist_ok=True)
        file = target / "metrics.parquet"
        save_metrics(table, file)
        if file.stat().st_size > ROUND_ABOVE:  # to 0.01 points, far below the deviation over seeds
            save_metrics(_rounded(table), file)
        shutil.copyfile(run.path / "manifest.json", target / "manifest.json")
        write_text(target / "collected.json", json.dumps({"commit": commit, **kept}, indent=1) + "\n")
        copied.append(run.path.name)
    return copied


def collect_figures(out: Path, folder: Path, commit: str) -> list[Path]:
    """Copy the figures over learners, of ablations and of the run that the paper shows, and the ablation summary."""
    # Several targets may draw the same figure; the target with most runs comes last and replaces the others.
    over_learners = sorted(out.glob("report/*/figures/*/*.png"), key=lambda file: (_place(file.parents[2].name), file))
    of_one_run = [file for name in OF_ONE_RUN for file in out.glob(f"report/*/figures/{name}")]
    targets = {}
    for source in [*over_learners, *sorted(out.glob("ablations/*/*.png"))]:
        targets[source] = Path(source.parent.name, source.name)
    for source in sorted(of_one_run, key=lambda file: (_place(file.parents[3].name), file)):
        stream, learner = source.parts[-3:-1]
        targets[source] = Path(stream, f"{learner}-{source.name}")
    copied = []
    for source, path in targets.items():
        target = folder / "figures" / path
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, target)
        copied.append(target)
    source, target = out / "ablations" / "summary.md", folder / "ablations.md"
    if source.exists():
        text = source.read_text(encoding="utf-8")
        if not (target.exists() and target.read_text(encoding="utf-8").startswith(text)):
            text += f"- Made by `tood reproduce ablations` at commit `{commit or 'unknown'}`.\n"
            write_text(target, text)
            copied.append(target)
    return list(dict.fromkeys(copied))


def _place(target: str) -> int:
    """Place of a target in the order in which figures are copied."""
    order = ("table2", "table1", "drift", "figures")
    return order.index(target) if target in order else -1


def current_commit() -> str:
    """The commit checked out in the current folder, with ``-dirty`` if files differ; "" outside a repository."""
    command = ["git", "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=30).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return ""


def _slim(table: pa.Table) -> pa.Table:
    """The rows that tables show: every detector with default settings, on corrected and on raw logits."""
    import pyarrow as pa
    import pyarrow.compute as pc

    shown = pc.is_in(table["settings"], pa.array(SETTINGS))
    return table.filter(pc.and_(pc.is_in(table["metric"], pa.array(KEPT)), shown)).combine_chunks()


def _unchanged(target: Path, run: Run, table: pa.Table, kept: dict[str, Any]) -> bool:
    """True if the target already holds the same content, from any commit."""
    files = [target / name for name in ("metrics.parquet", "manifest.json", "collected.json")]
    if not all(file.exists() for file in files):
        return False
    before = load_metrics(target)
    # The versions of the detectors are in the metadata.
    same = any(before.equals(one, check_metadata=True) for one in (table, _rounded(table)))
    written = json.loads(files[2].read_text(encoding="utf-8"))
    return bool(
        same
        and files[1].read_bytes() == (run.path / "manifest.json").read_bytes()
        and {name: written.get(name) for name in kept} == kept
    )


def _rounded(table: pa.Table) -> pa.Table:
    import pyarrow as pa

    place = table.column_names.index("value")
    return table.set_column(place, table.schema.field(place), pa.array(np.round(table["value"].to_numpy(), 4)))


def _plain(value: Any) -> Any:
    """A value for JSON: NaN, such as the drift of a run without features, becomes null."""
    return None if isinstance(value, float) and not math.isfinite(value) else value

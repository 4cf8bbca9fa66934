"""Results on frozen pretrained features: a small CSV file of scores and one of runs, written and read."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from tood.evaluation.metrics_only import energy_gap, step_facts
from tood.evaluation.versions import outdated
from tood.metrics import mean_std
from tood.outputs import Run, Step
from tood.report.gather import MeasuredRun
from tood.report.summary import ACCURACY, RAW_SUFFIX, Key, Summaries, Summary, run_figures
from tood.report.tables import LEARNERS, TOOD_VARIANTS, place
from tood.storage.files import write_text

__all__ = [
    "METRICS",
    "RUNS",
    "SCORES",
    "FrozenRuns",
    "Setting",
    "add_lines",
    "collect_frozen",
    "lines_of",
    "read_csv",
    "write_csv",
]

SCORES, RUNS = "pretrained-scores.csv", "pretrained-runs.csv"
METRICS = ("avg_auroc", "near_auroc", "far_auroc", "d_avg", "old_auroc", "avg_fpr95")
STREAMS = ("cifar10", "cifar100", "cifar100-20", "cifar100-50", "tinyimagenet", "tinyimagenet-100")
SHARED = ("network", "frozen", "adapter")  # options that all runs of this regime have
Row = dict[str, str]
Setting = tuple[str, str]  # stream and learner


def lines_of(run: Run, shared: Sequence[str] = SHARED) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """The lines of one run: one per detector whose metrics are not outdated, and one of the run."""
    measured = MeasuredRun(run)
    options = {name: value for name, value in run.identity.options.items() if name not in shared}
    label = replace(run.identity, options=options).label
    who = {"stream": run.stream, "learner": label, "seed": run.manifest.get("seed", 0)}
    figures = run_figures(measured.table, run.calibration)
    stale = {key.detector for key in outdated(measured.table)}
    scores = []
    for detector in sorted({name for name, _ in figures if name != "-" and name.partition(" (")[0] not in stale}):
        values = {metric: figures.get((detector, metric)) for metric in METRICS}
        text = {metric: "" if value is None else f"{value:.2f}" for metric, value in values.items()}
        scores.append({**who, "detector": detector, **text})
    point, last = measured.point(), len(run.partition) - 1
    gap = energy_gap(Step(run, last)) if measured.has_outputs else step_facts(run, last)["gap"]
    of_run = {
        "tasks": last + 1,
        "accuracy": f"{figures['-', ACCURACY]:.2f}",
        "old_accuracy": f"{point['old_accuracy']:.2f}",
    }
    of_run["track"] = run.calibration  # what detectors were fitted on
    of_run |= {"accuracy_forgetting": f"{point['f_avg']:.2f}", "drift": f"{point['drift']:.4f}", "gap": f"{gap:.3f}"}
    return scores, {**who, **of_run}


def collect_frozen(runs: Iterable[Run], metrics: Path, prefix: str, shared: Sequence[str]) -> int:
    """Write the lines of measured runs to ``PREFIX-scores.csv`` and ``PREFIX-runs.csv``; returns the number of runs."""
    lines = [lines_of(run, shared) for run in runs if run.metrics_path.exists()]
    add_lines(metrics / f"{prefix}-scores.csv", [line for scores, _ in lines for line in scores])
    add_lines(metrics / f"{prefix}-runs.csv", [line for _, line in lines])
    return len(lines)


def add_lines(file: Path, new: Sequence[Mapping[str, Any]]) -> None:
    """Add the lines of runs to a CSV file; all earlier lines of the same runs go, so that no run mixes two versions."""

    def of(row: Mapping[str, Any]) -> tuple[str, ...]:
        return tuple(str(row[name]) for name in ("stream", "learner", "seed"))

    renewed = {of(row) for row in new}
    rows: list[Mapping[str, Any]] = [*(row for row in read_csv(file) if of(row) not in renewed), *new]
    write_csv(file, sorted(rows, key=lambda row: (*of(row), str(row.get("detector", "")))))


def write_csv(file: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Write rows as CSV; one column per name that occurs."""
    text = io.StringIO()
    writer = csv.DictWriter(text, dict.fromkeys(name for row in rows for name in row), restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    write_text(file, text.getvalue())


def read_csv(path: Path) -> list[Row]:
    """Rows as dictionaries of text; empty if there is no file."""
    return list(csv.DictReader(path.read_text(encoding="utf-8").splitlines())) if path.exists() else []


class FrozenRuns:
    """Collected values by stream, learner, detector and seed."""

    def __init__(self, folder: Path, prefix: str = "pretrained") -> None:
        self.scores: dict[tuple[str, str, str], dict[str, Row]] = {}
        for row in read_csv(folder / f"{prefix}-scores.csv"):
            self.scores.setdefault((row["stream"], row["learner"], row["detector"]), {})[row["seed"]] = row
        self.runs: dict[Setting, dict[str, Row]] = {}
        for row in read_csv(folder / f"{prefix}-runs.csv"):
            self.runs.setdefault((row["stream"], row["learner"]), {})[row["seed"]] = row

    def seeds(self, setting: Setting, detector: str, metric: str = "avg_auroc", raw: bool = False) -> dict[str, float]:
        """The value of each seed."""
        rows = self.scores.get((*setting, detector + RAW_SUFFIX * raw), {})
        return {seed: float(row[metric]) for seed, row in rows.items() if row[metric]}

    def changes(self, setting: Setting, detector: str, metric: str, raw: bool = False) -> list[float]:
        """Per seed, the value of a detector minus the value of energy."""
        own, energy = (self.seeds(setting, name, metric, raw) for name in (detector, "energy"))
        return [own[seed] - energy[seed] for seed in own if seed in energy]

    def of_run(self, setting: Setting, name: str) -> list[float]:
        """A value of each run of a setting that has it."""
        return [float(row[name]) for row in self.runs[setting].values() if row.get(name)]

    def value(self, setting: Setting, name: str) -> float:
        """Mean over seeds of ``gain`` (of mean shift over energy), ``d_avg`` (of energy), or a column of the runs.

        The drift of a closed-form learner is NaN: it trains no features.
        """
        if name == "gain":
            values = self.changes(setting, TOOD_VARIANTS[0], "avg_auroc")
        elif name == "d_avg":
            values = list(self.seeds(setting, "energy", "d_avg").values())
        else:
            values = [value for value in self.of_run(setting, name) if name != "drift" or value > 0]
        return float(np.mean(values)) if values else float("nan")

    def summaries(self) -> Summaries:
        """Mean and deviation over seeds of every value."""
        found = {}
        for stream, learner, detector in self.scores:
            for metric in METRICS:
                if values := list(self.seeds((stream, learner), detector, metric).values()):
                    mean, std = mean_std(values)
                    found[Key(stream, learner, detector, metric)] = Summary(float(mean), float(std), len(values))
        return found

    def points(self, stream: str) -> Iterator[dict[str, Any]]:
        """One point per run of a stream, for relations over learners."""
        for setting, seeds in self.runs.items():
            energy, mds = (self.seeds(setting, detector, "d_avg") for detector in ("energy", "mds"))
            for seed, row in seeds.items() if setting[0] == stream else ():
                yield {
                    "learner": setting[1],
                    "drift": float(row["drift"]) or None,  # closed-form learners train no features
                    "f_avg": float(row["accuracy_forgetting"]),
                    "old_accuracy": float(row["old_accuracy"]) if row.get("old_accuracy") else None,
                    "d_avg": energy.get(seed),
                    "mds_d_avg": mds.get(seed),
                }

    def tasks(self, stream: str) -> str:
        """The number of tasks of a stream."""
        return next(row["tasks"] for (name, _), seeds in self.runs.items() if name == stream for row in seeds.values())

    def streams(self) -> list[str]:
        """Streams, short ones first."""
        return sorted({stream for stream, _ in self.runs}, key=lambda name: (place(name, STREAMS), name))

    def settings(self, learners: Iterable[str] | None = None) -> list[Setting]:
        """Pairs of stream and learner, the paper's five learners first."""
        known = sorted(self.runs, key=lambda s: (self.streams().index(s[0]), place(s[1], LEARNERS), s[1]))
        return known if learners is None else [setting for setting in known if setting[1] in learners]

"""The benchmark on frozen features, images and text: a CSV file of scores and one of runs, written and read."""

from __future__ import annotations

import csv
import io
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tood.evaluation.metrics_only import energy_gap, step_facts
from tood.metrics import mean_std
from tood.outputs import Run, Step
from tood.report.gather import MeasuredRun
from tood.report.summary import ACCURACY, RAW_SUFFIX, Key, Summaries, Summary, run_figures
from tood.report.tables import LEARNERS, place
from tood.storage.files import write_text

__all__ = ["METRICS", "RUNS", "SCORES", "Benchmark", "Setting", "add_lines", "collect_lines", "summary_of"]

SCORES, RUNS = "scores.csv", "runs.csv"
METRICS = ("avg_auroc", "near_auroc", "far_auroc", "d_avg", "old_auroc", "avg_fpr95")
WHO = ("stream", "learner", "seed", "track")
Row = dict[str, str]


class Setting(NamedTuple):
    """A learner on a stream, with detectors fitted on the data of one track."""

    stream: str
    learner: str
    track: str = "calibration"


def collect_lines(runs: Iterable[Run], metrics: Path) -> None:
    """Add the lines of measured runs to both files: one per detector and track, and one per run and track."""
    scores: list[dict[str, Any]] = []
    of_runs: list[dict[str, Any]] = []
    for run in runs:
        measured, last = MeasuredRun(run), len(run.partition) - 1
        point = measured.point()
        gap = energy_gap(Step(run, last)) if measured.has_outputs else step_facts(run, last)["gap"]
        for track in {name for name in measured.table["calibration"].to_pylist() if name}:
            figures = run_figures(measured.table, track)
            who = dict(zip(WHO, (run.stream, run.identity.method, run.manifest.get("seed", 0), track), strict=True))
            for detector in sorted({name for name, _ in figures if name != "-"}):
                values = {metric: figures.get((detector, metric)) for metric in METRICS}
                text = {metric: "" if value is None else f"{value:.2f}" for metric, value in values.items()}
                scores.append({**who, "detector": detector, **text})
            of_run = {"tasks": last + 1, "accuracy": f"{figures['-', ACCURACY]:.2f}"}
            of_run |= {"old_accuracy": f"{point['old_accuracy']:.2f}", "accuracy_forgetting": f"{point['f_avg']:.2f}"}
            of_runs.append({**who, **of_run, "drift": f"{point['drift']:.4f}", "gap": f"{gap:.3f}"})
    add_lines(metrics / SCORES, scores)
    add_lines(metrics / RUNS, of_runs)


def add_lines(file: Path, new: Sequence[Mapping[str, Any]]) -> None:
    """Add the lines of runs to a CSV file; all earlier lines of the same runs go, so that no run mixes two versions."""

    def of(row: Mapping[str, Any]) -> tuple[str, ...]:
        return tuple(str(row[name]) for name in WHO)

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


class Benchmark:
    """Collected values by setting, detector and seed."""

    def __init__(self, folder: Path) -> None:
        self.scores: dict[tuple[Setting, str], dict[str, Row]] = {}
        for row in read_csv(folder / SCORES):
            self.scores.setdefault((_setting(row), row["detector"]), {})[row["seed"]] = row
        self.runs: dict[Setting, dict[str, Row]] = {}
        for row in read_csv(folder / RUNS):
            self.runs.setdefault(_setting(row), {})[row["seed"]] = row

    def settings(self, stream: str, track: str, learners: Collection[str] = ()) -> list[Setting]:
        """The settings of a stream in a track, the paper's five learners first."""
        found = {of for of, _ in self.scores if (of.stream, of.track) == (stream, track)}
        return sorted(
            (of for of in found if not learners or of.learner in learners),
            key=lambda of: (place(of.learner, LEARNERS), of.learner),
        )

    def seeds(self, setting: Setting, detector: str, metric: str = "avg_auroc", raw: bool = False) -> dict[str, float]:
        """The value of each seed."""
        rows = self.scores.get((setting, detector + RAW_SUFFIX * raw), {})
        return {seed: float(row[metric]) for seed, row in rows.items() if row[metric]}

    def gains(self, setting: Setting, detector: str, raw: bool = False) -> list[float]:
        """Per seed, the Avg AUROC of a detector minus that of energy."""
        own, energy = (self.seeds(setting, name, raw=raw) for name in (detector, "energy"))
        return [own[seed] - energy[seed] for seed in own if seed in energy]

    def of_run(self, setting: Setting, name: str) -> list[float]:
        """A value of each run of a setting that has it."""
        return [float(row[name]) for row in self.runs.get(setting, {}).values() if row.get(name)]

    def summaries(self, track: str) -> Summaries:
        """Mean and deviation over seeds of every value in a track."""
        found = {}
        for of, detector in self.scores:
            for metric in METRICS if of.track == track else ():
                if values := list(self.seeds(of, detector, metric).values()):
                    found[Key(of.stream, of.learner, detector, metric)] = summary_of(values)
        return found

    def points(self, stream: str, track: str) -> Iterator[dict[str, Any]]:
        """One point per run of a stream, for relations over learners. The closed-form learners train no features."""
        for setting in self.settings(stream, track):
            energy, mds = (self.seeds(setting, name, "d_avg") for name in ("energy", "mds"))
            before, after = (self.seeds(setting, name) for name in ("energy", "tood_mean_shift"))
            for seed, row in self.runs.get(setting, {}).items():
                yield {
                    "learner": setting.learner,
                    "drift": float(row["drift"]) or None,
                    "f_avg": float(row["accuracy_forgetting"]),
                    "old_accuracy": float(row["old_accuracy"]) if row["old_accuracy"] else None,
                    "gap": float(row["gap"]),
                    "gain": after[seed] - before[seed],
                    "d_avg": energy.get(seed),
                    "mds_d_avg": mds.get(seed),
                }


def _setting(row: Mapping[str, str]) -> Setting:
    return Setting(row["stream"], row["learner"], row["track"])


def summary_of(values: Sequence[float]) -> Summary:
    """Mean and deviation over seeds."""
    mean, std = mean_std(values)
    return Summary(float(mean), float(std), len(values))

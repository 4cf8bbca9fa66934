"""Results on frozen pretrained features: collected from runs into three small CSV files, and read from them."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from results_pages.facts import FACT_NAMES
from results_pages.gains import RAW
from tood.files import write_text
from tood.report.gather import Measured
from tood.report.summary import ACCURACY, learner_label, run_figures
from tood.report.tables import LEARNERS, TOOD_VARIANTS, place
from tood.runs import Run, Step, find_runs
from tood.runs.figures_only import energy_gap, step_facts
from tood.runs.measure import is_measured
from tood.runs.versions import describe, outdated

__all__ = ["FACTS", "METRICS", "RUNS", "SCORES", "Setting", "Table", "add", "collect", "write_csv"]

SCORES, RUNS, FACTS = "pretrained-scores.csv", "pretrained-runs.csv", "pretrained-facts.csv"
METRICS = ("avg_auroc", "near_auroc", "far_auroc", "d_avg", "old_auroc", "avg_fpr95")
STREAMS = ("cifar10", "cifar100", "cifar100-20", "cifar100-50", "tinyimagenet", "tinyimagenet-100")
Row = dict[str, str]
Setting = tuple[str, str]  # stream and learner


def collect(paths: Iterable[str], folder: Path) -> None:
    """Write one line per run and detector, one line per run, and one line per step with numbers of the learner.

    Lines of runs collected earlier stay. Outdated figures are left out.
    """
    scores: list[dict[str, Any]] = []
    runs: list[dict[str, Any]] = []
    facts: list[dict[str, Any]] = []
    unfinished, left_out = [], []
    for run in find_runs([Path(path) for path in paths]):
        if run.manifest.get("preset") != "frozen":
            continue
        if not is_measured(run.path):
            unfinished.append(run.path.name)
            continue
        measured = Measured(run)
        who = {"stream": run.stream, "learner": learner(run), "seed": run.manifest.get("seed", 0)}
        figures = run_figures(measured.table, run.calibration)
        stale = outdated(measured.table)
        left_out += [f"{run.path.name}: {describe(stale)}"] if stale else []
        old = {name + suffix for name, *_ in stale for suffix in ("", RAW)}
        for detector in sorted({name for name, _ in figures} - {"-"} - old):
            values = {metric: figures.get((detector, metric)) for metric in METRICS}
            text = {metric: "" if value is None else f"{value:.2f}" for metric, value in values.items()}
            scores.append({**who, "detector": detector, **text})
        point, last = measured.point(), len(run.partition) - 1
        gap = energy_gap(Step(run, last)) if measured.has_outputs else step_facts(run, last)["gap"]
        runs.append(
            {
                **who,
                "tasks": last + 1,
                "accuracy": f"{figures['-', ACCURACY]:.2f}",
                "old_accuracy": f"{point['old_accuracy']:.2f}",
                "accuracy_forgetting": f"{point['f_avg']:.2f}",
                "drift": f"{point['drift']:.4f}",
                "gap": f"{gap:.3f}",
                "minutes": processor_minutes(run),
            }
        )
        for step in range(last + 1):
            known = {name: value for name, value in step_facts(run, step).items() if name in FACT_NAMES}
            facts += [{**who, "step": step, "fact": name, "value": f"{value:.4g}"} for name, value in known.items()]
    if not runs:
        raise SystemExit("no finished runs found")
    add({SCORES: scores, RUNS: runs, FACTS: facts}, folder)
    print(f"{len(runs)} runs collected; not finished: {', '.join(unfinished) or 'none'}")
    print(*(f"left out, {line}" for line in left_out), sep="\n", end="\n" * bool(left_out))


def add(lines: Mapping[str, list[dict[str, Any]]], folder: Path) -> None:
    """Add lines to the CSV files; earlier lines of the same run, detector or step are replaced."""
    for name, new in lines.items():
        rows = {identity(row): row for row in (*read_csv(folder / name), *new)}
        columns = dict.fromkeys([*(new[0] if new else ()), *(column for row in rows.values() for column in row)], "")
        write_csv(folder / name, [columns | rows[key] for key in sorted(rows)])


def identity(row: Mapping[str, Any]) -> tuple[str, str, str, str, int, str]:
    """What a line is about."""
    run = str(row["stream"]), str(row["learner"]), str(row["seed"])
    return *run, row.get("detector", ""), int(row.get("step", 0)), row.get("fact", "")


def processor_minutes(run: Run) -> str:
    """Processor time of a run in minutes, from the log of its sweep; empty if it is not known."""
    file = run.path.parent / ".logs" / f"{run.path.name}.log"
    found = re.search(r"^processor time: ([\d.:]+)", file.read_text(errors="replace"), re.M) if file.exists() else None
    if found is None:
        return ""
    seconds = sum(60**power * float(part) for power, part in enumerate(reversed(found[1].split(":"))))
    return f"{seconds / 60:.2f}"


def learner(run: Run) -> str:
    """The learner, without the options that all runs of this regime share."""
    every = ("network", "frozen", "adapter")
    options = {name: v for name, v in (run.manifest.get("options") or {}).items() if name not in every}
    return learner_label(run).split(" (")[0] + (f" ({options})" if options else "")


def write_csv(path: Path, rows: Sequence[dict[str, Any]]) -> None:
    """Write rows that share their keys."""
    text = io.StringIO()
    writer = csv.DictWriter(text, rows[0] if rows else (), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    write_text(path, text.getvalue())


def read_csv(path: Path) -> list[Row]:
    """Rows as dictionaries of text; empty if there is no file."""
    return list(csv.DictReader(path.read_text(encoding="utf-8").splitlines())) if path.exists() else []


class Table:
    """Collected values by stream, learner, detector and seed."""

    def __init__(self, folder: Path) -> None:
        self.scores: dict[tuple[str, str, str], dict[str, Row]] = {}
        for row in read_csv(folder / SCORES):
            self.scores.setdefault((row["stream"], row["learner"], row["detector"]), {})[row["seed"]] = row
        self.runs: dict[Setting, dict[str, Row]] = {}
        for row in read_csv(folder / RUNS):
            self.runs.setdefault((row["stream"], row["learner"]), {})[row["seed"]] = row
        self.facts = read_csv(folder / FACTS)

    def seeds(self, stream: str, learner: str, detector: str, metric: str = "avg_auroc") -> dict[str, float]:
        """The value of each seed."""
        rows = self.scores.get((stream, learner, detector), {})
        return {seed: float(row[metric]) for seed, row in rows.items() if row[metric]}

    def compared(self, stream: str, learner: str, names: Sequence[str], metric: str = "avg_auroc") -> list[list[float]]:
        """The values of several detectors over the seeds that all of them have; empty for one that has none."""
        values = [self.seeds(stream, learner, name, metric) for name in names]
        measured = [set(of) for of in values if of]
        common = sorted(set.intersection(*measured)) if measured else []
        return [[of[seed] for seed in common] if of else [] for of in values]

    def mean(self, stream: str, learner: str, detector: str, metric: str = "avg_auroc") -> float:
        """Mean over seeds; NaN if there are none."""
        values = self.seeds(stream, learner, detector, metric)
        return float(np.mean(list(values.values()))) if values else float("nan")

    def of_run(self, setting: Setting, name: str) -> list[float]:
        """A value of each run of a setting that has it."""
        return [float(row[name]) for row in self.runs[setting].values() if row.get(name)]

    def changes(self, setting: Setting, detector: str, metric: str, suffix: str = "") -> list[float]:
        """Per seed, the value of a detector minus the value of energy."""
        own, energy = (self.seeds(*setting, name + suffix, metric) for name in (detector, "energy"))
        return [own[seed] - energy[seed] for seed in own if seed in energy]

    def value(self, setting: Setting, name: str) -> float:
        """Mean over seeds of ``gain`` (of mean shift over energy), ``d_avg`` (of energy), or a column of the runs.

        The drift of a closed-form learner is NaN: it trains no features.
        """
        if name == "gain":
            return self.mean(*setting, TOOD_VARIANTS[0]) - self.mean(*setting, "energy")
        if name == "d_avg":
            return self.mean(*setting, "energy", "d_avg")
        value = float(np.mean(self.of_run(setting, name)))
        return value if name != "drift" or value > 0 else float("nan")  # untrained features cannot drift

    def tasks(self, stream: str) -> str:
        """The number of tasks of a stream."""
        return next(row["tasks"] for (name, _), seeds in self.runs.items() if name == stream for row in seeds.values())

    def streams(self) -> list[str]:
        """Streams, short ones first."""
        return sorted({stream for stream, _ in self.runs}, key=lambda name: (place(name, STREAMS), name))

    def learners(self, stream: str) -> list[str]:
        """Learners of a stream, the paper's five first."""
        learners = {learner for name, learner in self.runs if name == stream}
        return sorted(learners, key=lambda name: (place(name, LEARNERS), name))

    def settings(self, learners: Sequence[str] | None = None) -> list[Setting]:
        """Pairs of stream and learner."""
        return [(s, l) for s in self.streams() for l in self.learners(s) if learners is None or l in learners]

"""Rank the detectors published since OpenOOD 1.5 beside the others on finished runs, from their stored outputs.

    python benchmarks/newer_detectors.py RUN_OR_PARENT ... [--steps 3] [--only gmm,mds] [--csv FILE]

Each detector is fitted and scored in memory at some steps, evenly spaced and including the last; the runs stay as they
are. Per run, detectors are ranked by AUROC, (near + far) / 2 over tasks and steps; ranks and AUROC are averaged over
runs. With --csv, one line per run and detector is added to FILE.
"""

from __future__ import annotations

import argparse
import csv
import time
import warnings
from collections import defaultdict
from pathlib import Path

import numpy as np
from scipy.stats import rankdata

from tood import detectors
from tood.errors import ToodError
from tood.metrics import auroc
from tood.metrics.trajectory import near_far_mean
from tood.outputs import Run, find_runs
from tood.outputs.steps import Step

NEW = ("entropy", "gmm", "relation", "openmax", "tpl", "core", "grood", "weiper", "gram")


def step_auroc(name: str, step: Step, groups: dict[str, str]) -> float:
    """AUROC of a detector at a step: (near + far) / 2, mean over tasks."""
    detector = detectors.create(name)
    fit = step.calibration() if detector.fits_on == "calibration" or step.fit is None else step.fit
    detector.fit(fit, partition=step.partition, head=step.head)
    own, tasks = detector.score(step.test), step.test_tasks()
    outside = {ood: detector.score(outputs) for ood, outputs in step.ood.items()}
    cells = [
        near_far_mean([auroc(own[tasks == t], scores) for scores in outside.values()], [groups[o] for o in outside])
        for t in range(len(step.partition))
    ]
    return float(np.mean(cells))


def run_aurocs(run: Run, steps: int, only: list[str]) -> tuple[dict[str, float], dict[str, float]]:
    """AUROC by detector, and the seconds that each took."""
    groups = {ood: group for group, names in run.manifest["ood"].items() for ood in names}
    chosen = sorted({int(i) for i in np.linspace(0, len(run.steps()) - 1, steps + 1)[1:]})
    read = [Step(run, i) for i in chosen]
    found, seconds = {}, {}
    for name, kind in detectors.classes().items():
        if {"network", "inputs"} & kind.needs or (only and name not in only):
            continue
        started = time.perf_counter()
        try:
            found[name] = float(np.mean([step_auroc(name, step, groups) for step in read]))
        except ToodError as error:
            print(f"{run.path.name}: {name}: {error}")
        seconds[name] = time.perf_counter() - started
    return found, seconds


def add_lines(file: Path, run: Run, found: dict[str, float]) -> None:
    """Add the AUROC of each detector in a run to a CSV file, in percent."""
    new = not file.exists()
    with file.open("a", newline="") as opened:
        writer = csv.writer(opened, lineterminator="\n")
        if new:
            writer.writerow(("stream", "learner", "seed", "detector", "auroc"))
        for name, value in found.items():
            writer.writerow((run.stream, run.learner, run.manifest.get("seed", 0), name, f"{100 * value:.2f}"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("paths", nargs="+", type=Path)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--only", help="Names, separated by commas.")
    parser.add_argument("--csv", type=Path, help="Add the AUROC of each run and detector to this file.")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    ranks, values, times = defaultdict(list), defaultdict(list), defaultdict(float)
    runs = find_runs(arguments.paths)
    for run in runs:
        found, seconds = run_aurocs(run, arguments.steps, (arguments.only or "").split(",") if arguments.only else [])
        if arguments.csv:
            add_lines(arguments.csv, run, found)
        places = rankdata([-value for value in found.values()])
        for (name, value), place in zip(found.items(), places, strict=True):
            ranks[name].append(place)
            values[name].append(value)
            times[name] += seconds[name]
    print(f"{len(runs)} runs, {len(ranks)} detectors\n\n| rank | detector | mean rank | AUROC | s per run |")
    print("| ---: | --- | ---: | ---: | ---: |")
    for place, name in enumerate(sorted(ranks, key=lambda name: np.mean(ranks[name])), start=1):
        shown = f"**{detectors.title(name)}**" if name in NEW else detectors.title(name)
        rank, value = np.mean(ranks[name]), 100 * np.mean(values[name])
        print(f"| {place} | {shown} | {rank:.1f} | {value:.1f} | {times[name] / len(runs):.1f} |")


if __name__ == "__main__":
    main()

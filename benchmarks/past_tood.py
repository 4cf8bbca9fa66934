"""Every detector on the same calibration samples, and on all fit data: what is gained past TOOD, and where it is lost.

    python benchmarks/past_tood.py [--toy SEEDS] [--draws 3] [--evidence FILE] RUN_OR_PARENT ...

Reads stored outputs only (`tood run`, `tood sweep`) and writes nothing but the file of `--evidence`, which `tood audit`
quotes; a run that is still going counts with the steps it has. `--toy 2` adds the three regimes of the toy on seeds 0
and 1, in the features of its last hidden layer. Figures are percent. AUROC and FPR are (mean of near sets + mean of far
sets) / 2, averaged over tasks and steps; D is D_avg of that AUROC. A difference is paired by run; its interval is
Student's, 95 %, over runs.
"""

from __future__ import annotations

import argparse
import json
import os

for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[variable] = "1"

import tempfile
import time
import warnings
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from scipy.stats import t as student

from tood import detectors
from tood.detectors import Outputs
from tood.errors import ToodError
from tood.metrics import Trajectory, evaluate_tasks, nearest_distance
from tood.paper import toy
from tood.runs.directory import Run, find_runs, write_manifest
from tood.runs.score import usable
from tood.runs.steps import Step, write_step
from tood.sampling import balanced_subset

METRICS = ("auroc", "fpr_at_id_recall", "fpr_at_ood_recall")


class Method(NamedTuple):
    """A detector and the settings that differ from its defaults."""

    detector: str
    settings: tuple[tuple[str, Any], ...] = ()

    def __str__(self) -> str:
        return ", ".join([self.detector, *(f"{name}={value}" for name, value in self.settings)])

    @classmethod
    def of(cls, detector: str, **settings: Any) -> Method:
        """From keywords."""
        return cls(detector, tuple(settings.items()))


ENERGY = Method.of("energy")
TOODS = [Method.of(f"tood_{v}", **s) for v in ("mean_shift", "robust_anchor") for s in ({}, {"margin": 0.0})]
AUTO = Method.of("tood_auto")
NEW = [Method.of("typicality"), Method.of("tood_joint")]
RAW = Method.of("typicality", normalize=False)
MDS = Method.of("mds")
VARIATIONS = [
    RAW,
    *(Method.of("typicality", shrinkage=share) for share in (0.1, 0.3, 1.0)),
    Method.of("tood_joint", normalize=False),
    Method.of("tood_joint", recentre_distances=True),
    Method.of("tood_joint", margin=0.0),
    Method.of("tood_joint", variant="robust_anchor", recentre_distances=True),
    Method.of("knn", k=1),
]
COMPARED = [TOODS[0], TOODS[2], MDS, *NEW, RAW]


class Figures(NamedTuple):
    """What one method reached on one run, in percent."""

    average: float
    near: float
    far: float
    fpr_id: float
    fpr_ood: float
    forgetting: float


Samples = Callable[[Step, Method], "Outputs | list[Outputs] | None"]
Results = dict[Run, dict[Method, Figures]]


def calibration(step: Step, method: Method) -> Outputs:
    """The calibration set, whatever the detector would rather be fitted on."""
    return step.calibration()


def fit_data(step: Step, method: Method) -> Outputs | None:
    """All fit data, except for detectors that need every task: these keep the calibration set."""
    calibrated = detectors.classes()[method.detector].fits_on == "calibration" and method.detector != "typicality"
    return step.calibration() if calibrated else step.fit


def both(step: Step, method: Method) -> list[Outputs] | None:
    """The calibration set and all fit data."""
    return None if step.fit is None else [step.calibration(), step.fit]


def measure(run: Run, method: Method, samples: Samples, steps: Sequence[Step]) -> Figures:
    """Fit and score at every step, then average along the trajectory."""
    cubes = {metric: np.full((len(steps), len(steps), len(run.ood)), np.nan) for metric in METRICS}
    for step in steps:
        detector = detectors.create(method.detector, **dict(method.settings))
        detector.fit(samples(step, method), partition=step.partition, head=step.head)
        scores, tasks = detector.score(step.test), step.test_tasks()
        for place, outputs in enumerate(step.ood.values()):
            by_task, _ = evaluate_tasks(scores, tasks, detector.score(outputs), len(step.partition))
            for metric, cube in cubes.items():
                cube[step.index, : step.index + 1, place] = 100 * by_task[metric]
    auroc, *fprs = (Trajectory(cubes[metric], list(run.ood.values())) for metric in METRICS)
    groups = [auroc.group(g).average() if g in run.ood.values() else np.nan for g in ("near", "far")]
    balanced = auroc.balanced()
    rates = [fpr.balanced().average() for fpr in fprs]
    return Figures(balanced.average(), groups[0], groups[1], rates[0], rates[1], balanced.average_forgetting())


def measure_all(steps: dict[Run, list[Step]], methods: Iterable[Method], samples: Samples) -> Results:
    """Every method on every run; one that cannot be fitted on a run is left out there."""
    results: Results = {run: {} for run in steps}
    for run, of_run in steps.items():
        for method in methods:
            try:
                results[run][method] = measure(run, method, samples, of_run)
            except ToodError:
                continue
    return results


def mean(figures: Iterable[Figures]) -> Figures:
    """Their mean, figure by figure; none where there is none."""
    return Figures(*np.mean(list(figures), axis=0))


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print a Markdown table; numbers get one decimal."""
    print("| " + " | ".join(head) + " |\n| --- " + "| ---: " * (len(head) - 1) + "|")
    for row in rows:
        cells = (f"{c:.1f}" if isinstance(c, float) else str(c) for c in row)
        print("| " + " | ".join("" if c == "nan" else c for c in cells) + " |")
    print()


def print_averages(results: Results, methods: Iterable[Method]) -> None:
    """A row a method: means over the runs that have it."""
    rows = []
    for method in methods:
        found = [of_run[method] for of_run in results.values() if method in of_run]
        if found:
            short = f" ({len(found)} of {len(results)} runs)" * (len(found) < len(results))
            rows.append([f"{method}{short}", *mean(found)])
    head = ["", "Avg AUROC", "near", "far", "FPR@95 (ID recall)", "FPR@95 (OOD recall)", "D_avg"]
    table(head, sorted(rows, key=lambda row: -row[1]))


def better_tood(of_run: dict[Method, Figures]) -> Figures:
    """The best Avg AUROC of both variants with and without margin, chosen with hindsight."""
    return max((of_run[m] for m in TOODS), key=lambda f: f.average)


def label(run: Run) -> str:
    """What runs that differ by the seed alone have in common."""
    finetune = run.manifest.get("finetune", "none")
    parts = [run.stream, run.manifest.get("learner", run.path.name) + f"+{finetune}" * (finetune != "none")]
    parts += [f"{name} {value}" for name, value in run.manifest.get("options", {}).items()]
    missing = len(run.partition) - len(run.steps())
    return ", ".join([*parts, *[f"without the last {missing} steps"] * (missing > 0)])


def print_runs(results: Results) -> None:
    """A row a learner: Avg AUROC and D_avg of energy, the better TOOD and the new ones, mean ± std over seeds."""
    groups: dict[str, list[dict[Method, Figures]]] = {}
    for run, found in results.items():
        groups.setdefault(label(run), []).append(found)
    rows = []
    for name, runs in groups.items():
        shown = [[found[ENERGY] for found in runs], [better_tood(found) for found in runs]]
        shown += [[found[m] for found in runs] for m in NEW]
        rows.append([name, len(runs), *map(with_deviation, shown)])
    table(["learner", "seeds", "energy", "better TOOD", *map(str, NEW)], rows)


def with_deviation(figures: Sequence[Figures]) -> str:
    """Avg AUROC, its deviation over seeds where there are several, and D_avg."""
    averages, forgetting = [f.average for f in figures], float(np.mean([f.forgetting for f in figures]))
    deviation = f" ± {np.std(averages, ddof=1):.1f}" if len(averages) > 1 else ""
    return f"{np.mean(averages):.1f}{deviation}, D {forgetting:.1f}"


def evidence(results: Results) -> dict[str, Any]:
    """By stream: how often, and by how much, a new detector is above the best of energy and the paper's TOOD.

    Of finished runs; the toy is left out.
    """
    by_stream: dict[str, list[dict[Method, Figures]]] = {}
    for run, found in results.items():
        if run.stream != "toy" and len(run.steps()) == len(run.partition):
            by_stream.setdefault(run.stream, []).append(found)
    measured: dict[str, dict[str, Any]] = {}
    for method in (*NEW, AUTO):
        for stream, runs in sorted(by_stream.items()):
            gains = [found[method].average - max(found[m].average for m in (ENERGY, *TOODS)) for found in runs]
            near = [found[method].near - max(found[m].near for m in (ENERGY, *TOODS)) for found in runs]
            figures = {"above": sum(g > 0 for g in gains), "of": len(gains), "gain": round(float(np.mean(gains)), 2)}
            figures["near"] = round(float(np.mean(near)), 2)
            measured.setdefault(str(method), {})[stream] = figures
    command = "python benchmarks/past_tood.py --evidence src/tood/audit/supported.json RUNS"
    settings = {str(method): detectors.create(method.detector).get_params() for method in (*NEW, AUTO)}
    return {"command": command, "settings": settings, "detectors": measured}


def interval(values: Sequence[float]) -> str:
    """Mean, 95 % interval, worst."""
    centre = float(np.mean(values))
    if len(values) < 2:
        return f"{centre:+.1f}"
    half = float(student.ppf(0.975, len(values) - 1) * np.std(values, ddof=1) / len(values) ** 0.5)
    return f"{centre:+.1f} ± {half:.1f} (worst {min(values):+.1f})"


def print_differences(results: Results, methods: Iterable[Method]) -> None:
    """A row a method: paired differences to the better TOOD and to energy."""
    rows = []
    for method in methods:
        runs = [found for found in results.values() if method in found]
        if not runs:
            continue
        pairs = [(found[method], better_tood(found), found[ENERGY]) for found in runs]
        near = [own.near - max(tood.near, energy.near) for own, tood, energy in pairs]
        rows.append(
            [
                method,
                interval([own.average - tood.average for own, tood, _ in pairs]),
                interval([own.average - energy.average for own, _, energy in pairs]),
                interval(near),
            ]
        )
    table(["", "Avg AUROC − better TOOD", "Avg AUROC − energy", "near − best of energy and TOOD"], rows)


def print_sizes(steps: dict[Run, list[Step]], draws: int) -> None:
    """Avg AUROC and D_avg against the number of calibration samples a class."""
    least = min(np.bincount(s.calibration().labels).min() for of_run in steps.values() for s in of_run)
    rows = []
    for size in [n for n in (1, 2, 5, 10, 20, 30) if n <= least]:
        row: list[object] = [size]
        for method in COMPARED:
            found: list[Figures] = []
            for seed in range(draws if size < least else 1):

                def drawn(step: Step, method: Method, size: int = size, seed: int = seed) -> Outputs:
                    found = step.calibration()
                    return found[balanced_subset(np.asarray(found.labels), size * len(step.columns), seed)]

                results = measure_all(steps, [method], drawn)
                found += [of_run[method] for of_run in results.values() if method in of_run]
            row.append(f"{mean(found).average:.1f}, D {mean(found).forgetting:.1f}" if found else "")
        rows.append(row)
    table(["samples a class", *map(str, COMPARED)], rows)


def print_sources(steps: dict[Run, list[Step]]) -> None:
    """Avg AUROC and D_avg by the source of the calibration samples, over the runs that have all sources."""
    sources = sorted({s for of_run in steps.values() for s in of_run[0].calibration_sources()})
    complete = {r: of_run for r, of_run in steps.items() if set(of_run[0].calibration_sources()) >= set(sources)}
    if len(sources) < 2 or not complete:
        return
    print(f"Calibration source ({len(complete)} of {len(steps)} runs have all):\n")
    rows = []
    for source in sources:
        found = measure_all(complete, COMPARED, lambda step, _, source=source: step.calibration(source))
        means = [mean(of_run[m] for of_run in found.values()) for m in COMPARED]
        rows.append([source, *(f"{f.average:.1f}, D {f.forgetting:.1f}" for f in means)])
    table(["source", *map(str, COMPARED)], rows)


def margin(step: Step, normalize: bool, first: bool) -> str:
    """Median distance of OOD to the nearest calibration sample, over that of test samples; of the first task only.

    None where most test samples coincide with a calibration sample, as where all features are zero.
    """
    known, test = step.calibration(), step.test
    if first:
        known, test = (o[np.isin(o.labels, step.partition.tasks[0])] for o in (known, test))
    own = np.median(nearest_distance(test.features, known.features, normalize))
    away = [np.median(nearest_distance(o.features, known.features, normalize)) for o in step.ood.values()]
    return f"{np.mean(away) / own:.2f}" if own > 0 else "none"


def print_crowding(steps: dict[Run, list[Step]]) -> None:
    """How much farther OOD lies than ID, at the first and the last step, before and after dividing by the length."""
    rows = []
    for run, of_run in steps.items():
        ends = of_run[0], of_run[-1]
        ways = [(first, normalize) for first in (True, False) for normalize in (False, True)]
        rows.append([run.path.name, *(" → ".join(margin(s, n, f) for s in ends) for f, n in ways)])
    head = [f"{whose}, {what}" for whose in ("first task", "all tasks") for what in ("raw", "unit length")]
    table(["first → last step", *head], rows)


def print_cost(step: Step, rows: int = 20_000) -> None:
    """Time to score, in microseconds a sample and as a multiple of energy, beyond the forward pass: best of five."""
    test = step.test[np.arange(rows) % len(step.test)]
    found: dict[Method, float] = {}
    for method in (ENERGY, *COMPARED):
        detector = detectors.create(method.detector, **dict(method.settings))
        detector.fit(step.calibration(), partition=step.partition, head=step.head)
        times = []
        for _ in range(5):
            start = time.perf_counter()
            detector.score(test)
            times.append(time.perf_counter() - start)
        found[method] = 1e6 * min(times) / rows
    cells = (f"{cost:.2f} ({cost / found[ENERGY]:.0f} ×)" for cost in found.values())
    print(f"Scoring, µs a sample, {len(step.columns)} classes, {test.features.shape[1]} dimensions:\n")
    table(list(map(str, found)), [list(cells)])


def write_toy(folder: Path, regime: str, seed: int) -> None:
    """A run directory of the toy, with the features of its last hidden layer."""
    s = toy.Settings()
    samples, (_, _, weights, batches) = toy.sample(regime, seed, s), toy._generators(seed)
    body = toy.linear(weights, s.dimensions, s.hidden) + toy.linear(weights, s.hidden, s.hidden)
    head = [np.empty((s.hidden, 0), dtype=np.float32), np.empty(0, dtype=np.float32)]
    columns = np.arange(s.classes).reshape(s.tasks, -1).tolist()
    source = {"source": "memory", "size": s.exemplars * s.classes}
    write_manifest(folder, columns, near=["origin"], stream="toy", learner=regime, seed=seed, calibration=source)
    for step in range(s.tasks):
        grown = toy.linear(weights, s.hidden, s.classes_per_task)
        head = [np.concatenate([old, new], axis=-1) for old, new in zip(head, grown, strict=True)]
        seen, parameters = head[1].size, [*body, *head]
        old = seen - s.classes_per_task
        inputs, labels = toy._flat(samples.train[old:seen], first=old)
        if toy.REGIMES[regime].replay:
            exemplars, of = toy._flat(samples.train[:old, : s.exemplars])
            inputs, labels = np.concatenate([inputs, exemplars]), np.concatenate([labels, of])
        toy.train(parameters, inputs, labels, s, batches)

        def outputs(inputs: Any, labels: Any = None, parameters: Any = parameters) -> Outputs:
            *_, features, logits = toy.activations(parameters, inputs)
            return Outputs(logits, features, labels)

        write_step(
            folder,
            step,
            test=outputs(*toy._flat(samples.test[:seen])),
            calibration=outputs(*toy._flat(samples.train[:seen, : s.exemplars])),
            ood={"origin": outputs(samples.ood)},
            fit=outputs(inputs, labels),
            head={"weight": head[0].T, "bias": head[1]},
        )


def print_stream(name: str, runs: Sequence[Run], draws: int) -> Results:
    """Every table of one stream; returns what was measured on the calibration set alone."""
    steps = {run: [Step(run, index) for index in run.steps()] for run in runs}
    names = detectors.names()
    for of_run in steps.values():
        names = usable(of_run[-1], names)[0]
    methods = list(dict.fromkeys([*map(Method, names), *TOODS, *VARIATIONS]))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        print(f"## {name}: {len(runs)} runs, B = {runs[0].manifest['calibration']['size']}\n")
        results = measure_all(steps, methods, calibration)
        print_runs(results)
        print("Every detector fitted on the calibration set alone, mean over runs:\n")
        print_averages(results, methods)
        print("Paired differences, calibration set alone:\n")
        print_differences(results, [*NEW, *VARIATIONS, MDS])
        print("Fitted on all fit data (TOOD and tood_joint on the calibration set):\n")
        print_averages(measure_all(steps, methods, fit_data), methods)
        print("Fitted on the calibration set and all fit data:\n")
        chosen = [*NEW, RAW, MDS]
        print_averages(measure_all(steps, chosen, both), chosen)
        print("Number of calibration samples:\n")
        print_sizes(steps, draws)
        print_sources(steps)
        print("Crowding: nearest distance to a calibration sample, OOD over ID test, medians:\n")
        print_crowding(steps)
        print_cost(next(iter(steps.values()))[-1])
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="*", metavar="RUN_OR_PARENT")
    parser.add_argument("--toy", type=int, default=0, metavar="SEEDS", help="add the toy on this many seeds")
    parser.add_argument("--draws", type=int, default=3, help="draws of smaller calibration sets")
    parser.add_argument("--evidence", type=Path, metavar="FILE", help="write what `tood audit` quotes; not of the toy")
    options = parser.parse_args()
    started = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        for regime in toy.REGIMES if options.toy else ():
            for seed in range(options.toy):
                write_toy(Path(folder) / f"toy-{regime}-s{seed}", regime, seed)
        runs = [run for run in find_runs([*options.runs, *([folder] if options.toy else [])]) if run.steps()]
        measured: Results = {}
        for stream in dict.fromkeys(run.stream for run in runs):
            measured |= print_stream(stream, [run for run in runs if run.stream == stream], options.draws)
    if options.evidence:
        options.evidence.write_text(json.dumps(evidence(measured), indent=2) + "\n")
    print(f"{time.perf_counter() - started:.0f} s")


if __name__ == "__main__":
    main()

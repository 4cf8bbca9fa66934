"""``tood ablate``: what TOOD owes to each of its parts, from stored outputs alone. Nothing is trained or forwarded.

The energies of a step are computed once a partition. They then stand in for the logits of a partition into single
columns, whose energy is the column itself, so that :class:`~tood.TOOD` does all the rest and no formula is repeated.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, TypeAlias, get_args

import numpy as np
import numpy.typing as npt

from tood.arrays import FloatArray, IntArray
from tood.audit.resampling import Interval, Resampling
from tood.calibration import TOOD, Reference, Variant
from tood.energy import energy, task_energies
from tood.errors import ToodError, UnknownNameError
from tood.metrics import Trajectory
from tood.partition import Partition
from tood.runs.directory import Run
from tood.runs.score import Scorer, scores
from tood.runs.steps import Step

__all__ = ["ABLATIONS", "Ablated", "ablate", "balanced_order"]

Scores: TypeAlias = dict[str, npt.NDArray[Any]]  # of "test", and of each OOD set
Case: TypeAlias = tuple[tuple[str, Any], ...]  # the columns that tell a row from others of its table
Cases: TypeAlias = Iterator[tuple[dict[str, Any], Scores]]

TEST = "test"
VARIANTS: dict[str, Variant] = {"tood_robust_anchor": "robust_anchor", "tood_mean_shift": "mean_shift"}
SIZES = (5, 10, 20, 50, 100, 200, 300, 500, 700)  # B, over all classes of the stream
MARGINS = tuple(k / 10 for k in range(11))
SPLITS = {"1": 1, "2": 2, "3": 3, "singletons": None}


class Ablated(NamedTuple):
    """Of one run: a list of rows for each ablation, figures in percent, and what a reader of them should know."""

    rows: dict[str, list[dict[str, Any]]]
    notes: tuple[str, ...]


class View:
    """One step, its energies computed once for each partition it is looked at through."""

    def __init__(self, step: Step, draws: int) -> None:
        self.step = step
        self.draws = draws
        self.sets = {TEST: step.test, **step.ood}
        self._energies: dict[Partition, Scores] = {}

    def energies(self, partition: Partition) -> Scores:
        """``[n, N]`` of every set."""
        if partition not in self._energies:
            found = {name: np.asarray(task_energies(s.logits, partition)) for name, s in self.sets.items()}
            self._energies[partition] = found
        return self._energies[partition]

    def calibration(self, partition: Partition, source: str | None = None) -> tuple[FloatArray, IntArray]:
        """Energies ``[B, N]`` and labels ``[B]`` of the calibration set."""
        outputs = self.step.calibration(source)
        return np.asarray(task_energies(outputs.logits, partition)), np.asarray(outputs.labels)

    def score(self, calibrator: TOOD, partition: Partition | None = None, double: bool = False) -> Scores:
        """Every set, scored with what :func:`calibrate` made."""
        found = self.energies(partition or self.step.partition)
        return {name: calibrator.score(e.astype(np.float64) if double else e) for name, e in found.items()}


def calibrate(energies: FloatArray, channels: IntArray, variant: Variant, margin: float = 0.5) -> TOOD:
    """A calibrator that scores energies ``[n, N]``; ``channels`` is the one each calibration sample belongs to."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # a channel without spread is a finding here, not an accident
        singles = Partition.from_sizes([1] * energies.shape[1])
        return TOOD(singles, variant=variant, margin=margin).fit(energies, channels)


# --- the ablations: each yields, at one step, the scores of every case


def margin(view: View) -> Cases:
    """λ from 0 to 1 (paper, Fig. ablation_lambda)."""
    partition = view.step.partition
    energies, labels = view.calibration(partition)
    for detector, variant in VARIANTS.items():
        calibrator = calibrate(energies, partition.column_tasks[labels], variant)
        for value in MARGINS:
            yield {"detector": detector, "margin": value}, view.score(calibrator.set_params(margin=value))


def buffer(view: View) -> Cases:
    """B, drawn at random or by herding among the calibration samples that were stored (paper, Fig. buffer_ablation)."""
    step = view.step
    outputs, partition = step.calibration(), step.partition
    energies, labels = view.calibration(partition)
    channels = partition.column_tasks[labels]
    kinds: list[tuple[str, int, Any]] = [("random", draw, None) for draw in range(view.draws)]
    kinds += [("herding", 0, np.asarray(outputs.features))] if outputs.features is not None else []
    sizes = _sizes(step.run)
    for selection, draw, features in kinds:
        order = balanced_order(labels, partition, seed=draw, features=features)
        for size in sizes:
            rows = order[: size * len(step.columns) // step.run.partition.columns]
            calibrator = calibrate(energies[rows], channels[rows], "robust_anchor")
            case = {"detector": "tood_robust_anchor", "B": size, "selection": selection, "draw": draw}
            yield case, view.score(calibrator)


def mechanism(view: View) -> Cases:
    """Which part does the work: decomposition, rescaling, re-centring, or the same in feature space."""
    partition = view.step.partition
    energies, labels = view.calibration(partition)
    channels = partition.column_tasks[labels]
    ways: list[tuple[str, Variant, float]] = [("maximum of task energies", "none", 0.0)]
    ways += [("temperature", "temperature", 0.0), *((name, variant, 0.5) for name, variant in VARIANTS.items())]
    for name, variant, value in ways:
        yield {"mechanism": name, "baseline": "energy"}, view.score(calibrate(energies, channels, variant, value))
    if view.step.has("features"):
        for name, baseline in (("prototype", "energy"), ("tood_prototype", "prototype")):
            scored = scores(view.step, Scorer(name), keep=False)
            yield {"mechanism": name, "baseline": baseline}, {TEST: scored.test, **scored.ood}


def partition(view: View) -> Cases:
    """Tasks cut into pseudo-tasks; a group's statistics from its own samples or from all of its real task."""
    real = view.step.partition
    widest = max(map(len, real))
    for split, factor in SPLITS.items():
        groups = real.split(factor or widest)
        energies, labels = view.calibration(groups)
        for rule in ("group", "task") if split != "1" else ("group",):
            rows, channels = _members(labels, real, groups, rule)
            for detector, variant in VARIANTS.items():
                case = {"detector": detector, "split": split, "statistics": rule}
                yield case, view.score(calibrate(energies[rows], channels, variant), groups)


def anchor(view: View) -> Cases:
    """The reference task. In double precision: in single, mapped scores are rounded and neighbours may become ties."""
    partition = view.step.partition
    energies, labels = view.calibration(partition)
    for detector, variant in VARIANTS.items():
        calibrator = calibrate(energies, partition.column_tasks[labels], variant)
        for reference in get_args(Reference):
            scored = view.score(calibrator.set_params(reference=reference), double=True)
            yield {"detector": detector, "reference": reference}, scored


def source(view: View) -> Cases:
    """Calibration on training data, on replayed exemplars, or on samples that were never trained on."""
    partition = view.step.partition
    for name in _sources(view.step.run):
        energies, labels = view.calibration(partition, name)
        for detector, variant in VARIANTS.items():
            calibrator = calibrate(energies, partition.column_tasks[labels], variant)
            yield {"detector": detector, "calibration": name}, view.score(calibrator)


def interval(view: View) -> Cases:
    """Energy and both variants as they are, for the bootstrap."""
    partition = view.step.partition
    energies, labels = view.calibration(partition)
    yield {"detector": "energy"}, {name: np.asarray(energy(s.logits)) for name, s in view.sets.items()}
    for detector, variant in VARIANTS.items():
        calibrator = calibrate(energies, partition.column_tasks[labels], variant)
        yield {"detector": detector}, view.score(calibrator)


ABLATIONS: dict[str, Callable[[View], Cases]] = {
    f.__name__: f for f in (buffer, margin, mechanism, partition, anchor, source, interval)
}


# --- what they share


def balanced_order(labels: IntArray, partition: Partition, seed: int = 0, features: Any = None) -> IntArray:
    """Calibration samples so ordered that every beginning is balanced: over tasks first, then over their classes.

    Parameters
    ----------
    labels:
        ``[B]``, logit columns.
    partition:
        The columns of each task.
    seed:
        Of the random order within a class, and of the order of classes and tasks.
    features:
        ``[B, D]``: herding's order within a class in place of a random one.
    """
    from tood.sampling import herding

    rng = np.random.default_rng(seed)
    keys = np.empty((3, len(labels)))
    for task, columns in enumerate(partition):
        for turn, column in enumerate(rng.permutation(columns)):
            own = np.flatnonzero(labels == column)
            order = rng.permutation(len(own)) if features is None else herding(features[own], len(own))
            keys[2, own[order]] = np.arange(len(own))  # the how-manieth of its class, then of its task
            keys[1, own] = turn
            keys[0, own] = task
    shuffled = rng.permutation(len(partition))
    found: IntArray = np.lexsort((shuffled[keys[0].astype(int)], keys[1], keys[2]))
    return found


def auroc_by_task(test: FloatArray, tasks: IntArray, ood: FloatArray) -> npt.NDArray[np.float64]:
    """``[N]``: AUROC of each task against one OOD set, ties counted half."""
    ordered = np.sort(ood)
    below = np.searchsorted(ordered, test, "left") + np.searchsorted(ordered, test, "right")
    means: npt.NDArray[np.float64] = np.bincount(tasks, below) / np.bincount(tasks) / (2 * len(ood))
    return means


def ablate(run: Run, only: Sequence[str] = (), draws: int = 5, resamples: int = 200) -> Ablated:
    """Every ablation of one run.

    Parameters
    ----------
    run:
        A run with the outputs of its steps.
    only:
        Names in :data:`ABLATIONS`; all of them where it is empty.
    draws:
        How many random calibration sets of each size.
    resamples:
        Of the bootstrap behind the intervals.

    Returns
    -------
    For each ablation rows with ``avg_auroc``, ``near_auroc``, ``far_auroc``, ``d_avg`` and ``gain`` (over energy; of
    ``tood_prototype`` over ``prototype``) in percent, beside the columns that tell them apart.
    """
    for name in only:
        if name not in ABLATIONS:
            raise UnknownNameError("ablation", name, ABLATIONS)
    steps = run.steps()
    if not steps or steps != list(range(len(steps))):
        raise ToodError(f"{run.path}: expected the outputs of the steps from 0 on, found steps {steps}")
    wanted = list(only) or list(ABLATIONS)
    cubes: dict[str, dict[Case, list[npt.NDArray[np.float64]]]] = {name: {} for name in [*wanted, "interval"]}
    resampling = Resampling(run.ood, resamples)
    for index in steps:
        view = View(Step(run, index), draws)
        tasks = view.step.test_tasks()
        for name, cases in cubes.items():
            for case, scored in ABLATIONS[name](view):
                values = [auroc_by_task(scored[TEST], tasks, scored[ood]) for ood in run.ood]
                cases.setdefault(tuple(case.items()), []).append(np.stack(values, axis=1))
                if name == "interval" and name in wanted:
                    resampling.add(case["detector"], scored[TEST], tasks, {ood: scored[ood] for ood in run.ood})
    rows = {name: _rows(cases, run, cubes["interval"]) for name, cases in cubes.items() if name in wanted}
    if "interval" in rows:
        rows["interval"] = [row | _bounds(resampling.interval(row["detector"])) for row in rows["interval"]]
    return Ablated(rows, tuple(_notes(run, wanted)))


def _rows(
    cases: dict[Case, list[npt.NDArray[np.float64]]], run: Run, plain: dict[Case, list[npt.NDArray[np.float64]]]
) -> list[dict[str, Any]]:
    """A row a case."""
    groups = list(run.ood.values())
    averages = {"energy": _trajectory(plain[(("detector", "energy"),)], groups).balanced().average()}
    rows = []
    for case, values in cases.items():
        row = dict(case)
        along = _trajectory(values, groups)
        average = along.balanced().average()
        averages[row.get("mechanism", "")] = average
        row |= {"avg_auroc": 100 * average, "d_avg": 100 * along.balanced().average_forgetting()}
        row |= {f"{group}_auroc": 100 * along.group(group).average() for group in dict.fromkeys(groups)}
        rows.append(row | {"gain": 100 * (average - averages[row.get("baseline", "energy")])})
    return rows


def _trajectory(values: list[npt.NDArray[np.float64]], groups: list[str]) -> Trajectory:
    cube = np.full((len(values), len(values), len(groups)), np.nan)
    for step, of_step in enumerate(values):
        cube[step, : step + 1] = of_step
    return Trajectory(cube, groups)


def _bounds(found: Interval) -> dict[str, float]:
    return {name: 100 * value for name, value in found._asdict().items()}


def _members(labels: IntArray, real: Partition, groups: Partition, rule: str) -> tuple[IntArray, IntArray]:
    """The calibration samples behind each group's statistics, and the group each stands for."""
    if rule == "group":
        return np.arange(len(labels)), groups.column_tasks[labels]
    parents = [int(real.column_tasks[columns[0]]) for columns in groups]
    rows = [np.flatnonzero(real.column_tasks[labels] == parent) for parent in parents]
    return np.concatenate(rows), np.repeat(np.arange(len(groups)), [len(own) for own in rows])


def _sizes(run: Run) -> list[int]:
    """The sizes B that give every task of every step a sample and do not exceed what is stored; all of it last."""
    total, sizes = run.partition.columns, list[int]()
    last = Step(run, run.steps()[-1])
    stored = len(np.asarray(last.calibration().labels)) * total // len(last.columns)
    seen = [(len(Step(run, index).columns), index + 1) for index in run.steps()]
    for size in SIZES:
        if size < stored and all(size * columns // total >= tasks for columns, tasks in seen):
            sizes.append(size)
    return [*sizes, stored]


def _sources(run: Run) -> list[str]:
    """The sources of calibration samples that every step has, the one in use first."""
    found = [Step(run, index).calibration_sources() for index in run.steps()]
    return [name for name in found[-1] if all(name in other for other in found)]


def _notes(run: Run, wanted: Sequence[str]) -> Iterator[str]:
    steps, step = run.steps(), Step(run, run.steps()[-1])
    if len(steps) < len(run.partition):
        yield f"{len(steps)} of {len(run.partition)} steps are there"
    if not step.has("features"):
        yield "no features: herding and the feature-space analogue are left out"
    if "buffer" in wanted:
        yield f"B goes up to {_sizes(run)[-1]}, what is stored; herding picks among these samples"
    if "source" in wanted and len(_sources(run)) == 1:
        yield f"calibration samples come from one source only, {run.calibration}"

"""Ablations of TOOD on the stored outputs of a run: nothing is trained, no network is run.

The task energies of a step are computed once per partition. :class:`tood.TOOD` then receives them as the logits of a
partition into single columns: the energy of a single column is the column itself, so no formula is repeated here.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from typing import Any, TypeAlias, get_args

import numpy as np
import numpy.typing as npt

from tood.arrays import Float64Array, FloatArray, IntArray
from tood.calibration import TOOD, Reference, Variant
from tood.energy import energy, task_energies
from tood.errors import ToodError, UnknownNameError
from tood.evaluation.score import Scorer, scores
from tood.metrics import Trajectory
from tood.metrics.resampling import auroc_by_task
from tood.outputs.directory import Run
from tood.outputs.outputs import Outputs
from tood.outputs.sampling import herding
from tood.outputs.steps import Step
from tood.partition import Partition

__all__ = ["ABLATIONS", "ablate", "balanced_order"]

Scores: TypeAlias = dict[str, npt.NDArray[Any]]  # keys: "test" and the names of the OOD sets
Case: TypeAlias = tuple[tuple[str, Any], ...]  # the columns that identify a row of a table
Cases: TypeAlias = Iterator[tuple[dict[str, Any], Scores]]

TEST = "test"
VARIANTS: dict[str, Variant] = {"tood_robust_anchor": "robust_anchor", "tood_mean_shift": "mean_shift"}
SIZES = (5, 10, 20, 50, 100, 200, 300, 500, 700)  # B, the size of the calibration set for all classes of the stream
MARGINS = tuple(k / 10 for k in range(11))
SPLITS = {"1": 1, "2": 2, "3": 3, "singletons": None}


class View:
    """One step of a run, with its task energies cached per partition."""

    def __init__(self, step: Step, draws: int) -> None:
        self.step = step
        self.draws = draws
        self.sets = {TEST: step.test, **step.ood}
        self.energies = lru_cache(self._energies)

    def _energies(self, partition: Partition) -> Scores:
        """Task energies ``[n, N]`` of every set."""
        return {name: np.asarray(task_energies(s.logits, partition)) for name, s in self.sets.items()}

    def calibration(self, partition: Partition) -> tuple[FloatArray, IntArray]:
        """Energies ``[B, N]`` and labels ``[B]`` of the calibration set."""
        outputs = self.step.calibration()
        return np.asarray(task_energies(outputs.logits, partition)), np.asarray(outputs.labels)

    def calibrator(self, variant: Variant, margin: float = 0.5) -> TOOD:
        """A calibrator of the tasks seen, fitted on the calibration set."""
        partition = self.step.partition
        energies, labels = self.calibration(partition)
        return calibrate(energies, partition.column_tasks[labels], variant, margin)

    def score(self, calibrator: TOOD, partition: Partition | None = None, double: bool = False) -> Scores:
        """Scores of every set by a calibrator from :func:`calibrate`."""
        energies = self.energies(partition or self.step.partition)
        return {name: calibrator.score(e.astype(np.float64) if double else e) for name, e in energies.items()}


def calibrate(energies: FloatArray, channels: IntArray, variant: Variant, margin: float = 0.5) -> TOOD:
    """A calibrator for task energies ``[n, N]``; ``channels`` is the channel of each calibration sample."""
    singles = Partition.from_sizes([1] * energies.shape[1])
    return TOOD(singles, variant=variant, margin=margin).fit(energies, channels)


# --- the ablations: each yields the scores of every case at one step


def margin(view: View) -> Cases:
    """Margin weight λ from 0 to 1 (paper, Fig. ablation_lambda)."""
    for detector, variant in VARIANTS.items():
        calibrator = view.calibrator(variant)
        for value in MARGINS:
            yield {"detector": detector, "margin": value}, view.score(calibrator.set_params(margin=value))


def buffer(view: View) -> Cases:
    """Size B of the calibration set, drawn at random or by herding (paper, Fig. buffer_ablation)."""
    step, partition = view.step, view.step.partition
    sizes = {size: size * len(step.columns) // step.run.partition.columns for size in _sizes(step.run)}
    kinds: list[tuple[str, int, Outputs]] = [("random", draw, step.calibration()) for draw in range(view.draws)]
    kinds += [("herding", 0, _herded(step))] if step.has("features") else []
    for selection, draw, pool in kinds:
        energies, labels = np.asarray(task_energies(pool.logits, partition)), np.asarray(pool.labels)
        channels = partition.column_tasks[labels]
        features = np.asarray(pool.features) if selection == "herding" else None
        order = balanced_order(labels, partition, draw, features, -(-max(sizes.values()) // len(step.columns)))
        for size, count in sizes.items():
            rows = order[:count]
            calibrator = calibrate(energies[rows], channels[rows], "robust_anchor")
            case = {"detector": "tood_robust_anchor", "B": size, "selection": selection, "draw": draw}
            yield case, view.score(calibrator)


def mechanism(view: View) -> Cases:
    """Parts of TOOD alone: maximum over tasks, rescaling, re-centring, and the same in feature space."""
    methods: list[tuple[str, Variant, float]] = [("maximum of task energies", "none", 0.0)]
    methods += [("temperature", "temperature", 0.0), *((name, variant, 0.5) for name, variant in VARIANTS.items())]
    for name, variant, value in methods:
        yield {"mechanism": name, "baseline": "energy"}, view.score(view.calibrator(variant, value))
    if view.step.has("features"):
        for name, baseline in (("prototype", "energy"), ("tood_prototype", "prototype")):
            scored = scores(view.step, Scorer(name), keep=False)
            yield {"mechanism": name, "baseline": baseline}, {TEST: scored.test, **scored.ood}


def partition(view: View) -> Cases:
    """Tasks split into pseudo-tasks; statistics of a group from its own samples or from its whole real task."""
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
    """Reference task, in double precision, because rounding in single precision creates ties."""
    for detector, variant in VARIANTS.items():
        calibrator = view.calibrator(variant)
        for reference in get_args(Reference):
            scored = view.score(calibrator.set_params(reference=reference), double=True)
            yield {"detector": detector, "reference": reference}, scored


def plain(view: View) -> Cases:
    """Energy, which gains are over."""
    yield {}, {name: np.asarray(energy(s.logits)) for name, s in view.sets.items()}


ABLATIONS: dict[str, Callable[[View], Cases]] = {f.__name__: f for f in (buffer, margin, mechanism, partition, anchor)}


# --- shared functions


def _herded(step: Step) -> Outputs:
    """What herding chooses from: all training data if stored (tracks paper and all), else the calibration set."""
    if "all" in step.calibration_sources():
        return step.calibration("all")
    return step.fit if step.run.calibration == "paper" and step.fit is not None else step.calibration()


def balanced_order(
    labels: IntArray, partition: Partition, seed: int = 0, features: Any = None, most: int | None = None
) -> IntArray:
    """An order of the calibration samples whose every prefix is balanced over tasks, then over classes.

    Parameters
    ----------
    labels:
        Logit columns ``[B]``.
    partition:
        The columns of each task.
    seed:
        Seed of the order within each class, and of the order of classes and tasks.
    features:
        Features ``[B, D]``. If given, samples of a class are ordered by herding instead of at random.
    most:
        Order only so many of each class.
    """
    rng = np.random.default_rng(seed)
    shuffled = rng.permutation(len(partition))
    keys = np.full((3, len(labels)), np.inf)
    for task, columns in enumerate(partition):
        for turn, column in enumerate(rng.permutation(columns)):
            own = np.flatnonzero(labels == column)
            count = min(len(own), most or len(own))
            ranked = own[rng.permutation(len(own))[:count] if features is None else herding(features[own], count)]
            keys[:, ranked] = np.stack(np.broadcast_arrays(shuffled[task], turn, np.arange(count)))
    order = np.lexsort(keys)  # by rank within its class, then within its task
    return np.asarray(order[np.isfinite(keys[2, order])], np.int64)


def ablate(run: Run, only: Sequence[str] = (), draws: int = 5) -> dict[str, list[dict[str, Any]]]:
    """Run ablations on one run.

    Parameters
    ----------
    run:
        A run with stored outputs of its steps.
    only:
        Names in :data:`ABLATIONS`; empty for all.
    draws:
        Number of random calibration sets per size.

    Returns
    -------
    Rows per ablation: the columns that identify a case, then ``avg_auroc``, ``near_auroc``, ``far_auroc``, ``d_avg``
    and ``gain`` (over energy; ``tood_prototype`` over ``prototype``) in percent.
    """
    for name in only:
        if name not in ABLATIONS:
            raise UnknownNameError("ablation", name, ABLATIONS)
    steps = run.steps()
    if steps != list(range(len(run.partition))):
        raise ToodError(f"{run.path}: expected outputs of all {len(run.partition)} steps, found steps {steps}")
    wanted = {name: ABLATIONS[name] for name in only or ABLATIONS}
    cubes: dict[str, dict[Case, list[Float64Array]]] = {name: {} for name in ("plain", *wanted)}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # a handful of calibration samples has no spread and no range
        for index in steps:
            view = View(Step(run, index), draws)
            tasks = view.step.test_tasks()
            for name, cases_of in {"plain": plain, **wanted}.items():
                for case, scored in cases_of(view):
                    values = [auroc_by_task(scored[TEST], tasks, scored[ood]) for ood in run.ood]
                    cubes[name].setdefault(tuple(case.items()), []).append(np.stack(values, axis=1))
    groups = list(run.ood.values())
    of_energy = _trajectory(cubes.pop("plain")[()], groups).balanced().average()
    return {name: list(_rows(cases, groups, of_energy)) for name, cases in cubes.items()}


def _rows(cases: dict[Case, list[Float64Array]], groups: list[str], of_energy: float) -> Iterator[dict[str, Any]]:
    """One row per case."""
    averages = {"energy": of_energy}
    for case, values in cases.items():
        row = dict(case)
        trajectory = _trajectory(values, groups)
        average = trajectory.balanced().average()
        averages[row.get("mechanism", "")] = average
        row |= {"avg_auroc": 100 * average, "d_avg": 100 * trajectory.balanced().average_forgetting()}
        row |= {f"{group}_auroc": 100 * trajectory.group(group).average() for group in dict.fromkeys(groups)}
        yield row | {"gain": 100 * (average - averages[row.get("baseline", "energy")])}


def _trajectory(values: list[Float64Array], groups: list[str]) -> Trajectory:
    cube = np.full((len(values), len(values), len(groups)), np.nan)
    for step, of_step in enumerate(values):
        cube[step, : step + 1] = of_step
    return Trajectory(cube, groups)


def _members(labels: IntArray, real: Partition, groups: Partition, rule: str) -> tuple[IntArray, IntArray]:
    """Rows of the calibration samples behind the statistics of each group, and the group of each row."""
    if rule == "group":
        return np.arange(len(labels)), groups.column_tasks[labels]
    parents = [int(real.column_tasks[columns[0]]) for columns in groups]
    rows = [np.flatnonzero(real.column_tasks[labels] == parent) for parent in parents]
    return np.concatenate(rows), np.repeat(np.arange(len(groups)), [len(own) for own in rows])


def _sizes(run: Run) -> list[int]:
    """Sizes B with at least one sample per task at every step, below the stored size; the stored size last."""
    total = run.partition.columns
    last = Step(run, run.steps()[-1])
    stored = len(np.asarray(last.calibration().labels)) * total // len(last.columns)
    seen = [(len(Step(run, index).columns), index + 1) for index in run.steps()]
    enough = (size for size in SIZES if all(size * columns // total >= tasks for columns, tasks in seen))
    return [*(size for size in enough if size < stored), stored]

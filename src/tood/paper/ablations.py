"""Ablations of TOOD on the stored outputs of a run: nothing is trained, no network is run.

The task energies of a step are computed once per partition. :class:`tood.TOOD` then receives them as the logits of a
partition into single columns: the energy of a single column is the column itself, so no formula is repeated here.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from typing import Any, NamedTuple, TypeAlias, get_args

import numpy as np
import numpy.typing as npt

from tood.arrays import FloatArray, IntArray
from tood.calibration import TOOD, Reference, Variant
from tood.energy import energy, task_energies
from tood.errors import ToodError, UnknownNameError
from tood.evaluation.score import Scorer, scores
from tood.metrics import Trajectory
from tood.metrics.resampling import Samples, TaskScores, auroc_by_task
from tood.metrics.resampling import interval as with_interval
from tood.outputs.directory import Run
from tood.outputs.outputs import Outputs
from tood.outputs.steps import Step
from tood.partition import Partition

__all__ = ["ABLATIONS", "Ablated", "ablate", "balanced_order"]

Scores: TypeAlias = dict[str, npt.NDArray[Any]]  # keys: "test" and the names of the OOD sets
Case: TypeAlias = tuple[tuple[str, Any], ...]  # the columns that identify a row of a table
Cases: TypeAlias = Iterator[tuple[dict[str, Any], Scores]]

TEST = "test"
VARIANTS: dict[str, Variant] = {"tood_robust_anchor": "robust_anchor", "tood_mean_shift": "mean_shift"}
SIZES = (5, 10, 20, 50, 100, 200, 300, 500, 700)  # B, the size of the calibration set for all classes of the stream
MARGINS = tuple(k / 10 for k in range(11))
SPLITS = {"1": 1, "2": 2, "3": 3, "singletons": None}


class Ablated(NamedTuple):
    """Result for one run: rows per ablation, values in percent, and notes for the reader."""

    rows: dict[str, list[dict[str, Any]]]
    notes: tuple[str, ...]


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

    def calibration(self, partition: Partition, source: str | None = None) -> tuple[FloatArray, IntArray]:
        """Energies ``[B, N]`` and labels ``[B]`` of the calibration set."""
        outputs = self.step.calibration(source)
        return np.asarray(task_energies(outputs.logits, partition)), np.asarray(outputs.labels)

    def calibrator(self, variant: Variant, margin: float = 0.5, source: str | None = None) -> TOOD:
        """A calibrator of the tasks seen, fitted on the calibration set of a source (by default the one in use)."""
        partition = self.step.partition
        energies, labels = self.calibration(partition, source)
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


def source(view: View) -> Cases:
    """Source of the calibration set: training data, replayed exemplars, or samples never trained on."""
    for name in _sources(view.step.run):
        for detector, variant in VARIANTS.items():
            yield {"detector": detector, "calibration": name}, view.score(view.calibrator(variant, source=name))


def interval(view: View) -> Cases:
    """Energy and both variants with default settings, for the bootstrap."""
    yield {"detector": "energy"}, {name: np.asarray(energy(s.logits)) for name, s in view.sets.items()}
    for detector, variant in VARIANTS.items():
        yield {"detector": detector}, view.score(view.calibrator(variant))


ABLATIONS: dict[str, Callable[[View], Cases]] = {
    f.__name__: f for f in (buffer, margin, mechanism, partition, anchor, source, interval)
}


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
    from tood.outputs.sampling import herding

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


def ablate(run: Run, only: Sequence[str] = (), draws: int = 5) -> Ablated:
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
    if not steps or steps != list(range(len(steps))):
        raise ToodError(f"{run.path}: expected outputs of steps 0, 1, …, found steps {steps}")
    wanted = list(only) or list(ABLATIONS)
    cubes: dict[str, dict[Case, list[npt.NDArray[np.float64]]]] = {name: {} for name in [*wanted, "interval"]}
    samples = Samples()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # a handful of calibration samples has no spread and no range
        for index in steps:
            view = View(Step(run, index), draws)
            tasks = view.step.test_tasks()
            for name, cases in cubes.items():
                for case, scored in ABLATIONS[name](view):
                    values = [auroc_by_task(scored[TEST], tasks, scored[ood]) for ood in run.ood]
                    cases.setdefault(tuple(case.items()), []).append(np.stack(values, axis=1))
                    if name == "interval" and name in wanted:
                        _add_average(samples, case["detector"], scored, tasks, run)
    rows = {name: _rows(cases, run, cubes["interval"]) for name, cases in cubes.items() if name in wanted}
    drawn = samples.drawn() if "interval" in wanted else {}
    for row in rows.get("interval", ()):
        average = 100 * drawn[row["detector"]]
        of_average, of_gain = with_interval(average), with_interval(average - 100 * drawn["energy"])
        row |= {"low": of_average.low, "high": of_average.high, "gain_low": of_gain.low, "gain_high": of_gain.high}
    return Ablated(rows, tuple(_notes(run, wanted)))


def _add_average(samples: Samples, name: str, scored: Scores, tasks: IntArray, run: Run) -> None:
    """Add one step's share of the average AUROC, near and far weighted equally, to the statistic ``name``."""
    known, sets = int(tasks.max()) + 1, Counter(run.ood.values())
    indices = np.empty(len(tasks), dtype=np.intp)
    for task in range(known):
        own = np.flatnonzero(tasks == task)
        indices[own] = samples.indices(("test", task), len(own))
    for ood, group in run.ood.items():
        weights = np.full(known, 1 / (len(run.steps()) * known * len(sets) * sets[group]))
        of_ood = samples.indices(("ood", ood), len(scored[ood]))
        samples.add_auroc(name, weights, TaskScores(scored[TEST], tasks, indices), scored[ood], of_ood)


def _rows(
    cases: dict[Case, list[npt.NDArray[np.float64]]], run: Run, plain: dict[Case, list[npt.NDArray[np.float64]]]
) -> list[dict[str, Any]]:
    """One row per case; ``plain`` has the values of energy."""
    groups = list(run.ood.values())
    averages = {"energy": _trajectory(plain[(("detector", "energy"),)], groups).balanced().average()}
    rows = []
    for case, values in cases.items():
        row = dict(case)
        trajectory = _trajectory(values, groups)
        average = trajectory.balanced().average()
        averages[row.get("mechanism", "")] = average
        row |= {"avg_auroc": 100 * average, "d_avg": 100 * trajectory.balanced().average_forgetting()}
        row |= {f"{group}_auroc": 100 * trajectory.group(group).average() for group in dict.fromkeys(groups)}
        rows.append(row | {"gain": 100 * (average - averages[row.get("baseline", "energy")])})
    return rows


def _trajectory(values: list[npt.NDArray[np.float64]], groups: list[str]) -> Trajectory:
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


def _sources(run: Run) -> list[str]:
    """Sources of calibration samples that every step has; the one in use first."""
    by_step = [Step(run, index).calibration_sources() for index in run.steps()]
    return [name for name in by_step[-1] if all(name in sources for sources in by_step)]


def _notes(run: Run, wanted: Sequence[str]) -> Iterator[str]:
    steps, step = run.steps(), Step(run, run.steps()[-1])
    if len(steps) < len(run.partition):
        yield f"only {len(steps)} of {len(run.partition)} steps are stored"
    if not step.has("features"):
        yield "no features: herding and prototypes are left out"
    if "buffer" in wanted:
        pool = len(np.asarray(_herded(step).labels))
        yield f"B ends at {_sizes(run)[-1]}, the stored calibration set; herding chooses among {pool:,} samples"
    if "source" in wanted and len(_sources(run)) == 1:
        yield f"only one source of calibration samples is stored: {run.calibration}"

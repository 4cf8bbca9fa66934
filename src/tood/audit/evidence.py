"""The evidence an audit rests on: what was lost, what re-centring gives back, what the features alone show.

A :class:`Collector` reads each step once, while its scores are measured. Everything it gathers has a bootstrap
distribution over samples; nothing here decides anything.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from tood.arrays import Float64Array, FloatArray, IntArray
from tood.audit.bootstrap import RESAMPLES, Estimate, Statistics, estimate, shares_below
from tood.calibration import own_energies
from tood.energy import energy, task_energies
from tood.metrics import confidence_gap, nearest_distance
from tood.runs.directory import Run
from tood.runs.score import Scored, Scorer
from tood.runs.steps import Step

__all__ = ["Collector", "Distances", "Evidence", "Gap", "combine", "distances", "scope_weights"]

MOST = 2000  # ID samples at the last step, and samples per OOD set, that distances are taken from and to
MOST_LONG = 500  # samples per OOD set on long streams: the cost grows with steps times samples
LONG = 20  # tasks


@dataclass(frozen=True)
class Gap:
    """Mean energy of each task's samples in their own channel at one step, and the spread of test samples in theirs."""

    calibration: tuple[float, ...]
    test: tuple[float, ...]
    spread: float

    @staticmethod
    def of_old(energies: Iterable[float]) -> float:
        """How far the old tasks lie below the latest one, on average."""
        *old, latest = energies
        return latest - float(np.mean(old)) if old else 0.0

    def hidden(self) -> bool:
        """Whether calibration samples show less than half of the gap that test samples show."""
        seen, there = self.of_old(self.calibration), self.of_old(self.test)
        return there >= 0.5 * self.spread and seen < 0.5 * there


@dataclass(frozen=True)
class Distances:
    """Distances to the nearest of a set of ID test samples, the same number per class: geometric means per step.

    Attributes
    ----------
    ood, known:
        Of OOD samples (geometric mean over sets) and of other ID test samples.
    """

    ood: tuple[float, ...]
    known: tuple[float, ...]

    @property
    def ratio(self) -> tuple[float, ...]:
        """How many times as far as ID itself OOD is from ID, per step: free of the scale of the features."""
        return tuple(o / i for o, i in zip(self.ood, self.known, strict=True))


class Nearest(NamedTuple):
    """Distances at one step to the reference half of the ID test samples."""

    reference: IntArray  # rows of the test data that distances are taken to
    known: Float64Array  # of the other half
    rows: IntArray  # the rows of the test data these are
    tasks: IntArray  # the task of each
    ood: dict[str, Float64Array]
    ood_rows: dict[str, IntArray]


@dataclass(frozen=True)
class Evidence:
    """Statistics of one run, or of several seeds, by name: values and bootstrap draws.

    Names are ``(what, scope)``. AUROCs, each the mean over old tasks: ``learned`` and ``kept`` (energy at each task's
    own step and at the last), ``recentred`` (at the last step, every channel re-centred), ``own_learned`` and
    ``own_kept`` (by the energy of a task's own channel alone), ``features_learned`` and ``features_kept`` (by the
    distance to the nearest class mean of the task). Further: ``loss`` (``learned`` minus ``kept``: D_avg), ``fresh``
    (energy, the newest task, last step), ``end`` (energy, all tasks, last step), ``nearer`` (log of how much nearer
    OOD has come to ID), ``within`` (accuracy lost when the task is given), ``score:NAME`` (Avg AUROC on the reported
    half of the OOD samples). ``choice`` holds Avg AUROC on the other half.
    """

    scopes: tuple[str, ...]
    values: dict[tuple[str, str], float]
    draws: dict[tuple[str, str], Float64Array]
    choice: dict[str, float] = field(default_factory=dict)
    seeds: int = 1

    def estimate(self, what: str, scope: str = "all") -> Estimate | None:
        """A statistic with its interval; None if the run does not have it."""
        name = (what, scope)
        return estimate(self.values[name], self.draws[name]) if name in self.values else None


def scope_weights(groups: Mapping[str, str]) -> dict[str, dict[str, float]]:
    """The weight of each OOD set in ``all`` (near and far weighted alike) and in each group.

    >>> scope_weights({"a": "near", "b": "far", "c": "far"})["all"]
    {'a': 0.5, 'b': 0.25, 'c': 0.25}
    """
    members = {group: [name for name in groups if groups[name] == group] for group in dict.fromkeys(groups.values())}
    found = {group: {name: 1 / len(names) for name in names} for group, names in members.items()}
    return found | {"all": {name: w / len(members) for names in found.values() for name, w in names.items()}}


class Collector:
    """Gathers the evidence of a run while its steps are scored in order.

    Parameters
    ----------
    run:
        The run.
    steps:
        How many steps there are, T.
    """

    def __init__(self, run: Run, steps: int) -> None:
        self.run = run
        self.steps = steps
        self.statistics = Statistics()
        self.choice: dict[str, float] = {}
        self.distances: list[tuple[float, float]] = []
        self._scopes = scope_weights(run.ood)
        self._step: Step | None = None

    def __call__(self, step: Step, scorer: Scorer, scored: Scored) -> None:
        """Take in the scores of one detector at one step."""
        if step is not self._step:
            self._enter(step)
        if scorer.settings() == "":
            self._score(scorer.detector, scored)
            if scorer.detector == "energy":
                self._old(scored.test, self._tasks, self._places, scored.ood, self._ood_places, ("learned", "kept"))
                if step.index == self.steps - 1:
                    self._last(step, scored)

    def evidence(self) -> Evidence:
        """Everything gathered, by scope."""
        sets = list(self.statistics.values)
        if len(self.distances) < self.steps:  # some step has no features, or too few samples
            sets = [name for name in sets if name[0] not in ("features_learned", "features_kept", "nearer")]  # type: ignore[index]
        draws = self.statistics.draws(sets)
        values: dict[tuple[str, str], float] = {}
        drawn: dict[tuple[str, str], Float64Array] = {}
        for what in dict.fromkeys(name[0] for name in sets):  # type: ignore[index]
            for scope, weights in self._scopes.items():
                names = [((what, name), weight) for name, weight in weights.items()]
                names = [((what, ""), 1.0)] if (what, "") in sets else names
                values[what, scope] = sum(weight * self.statistics.values[name] for name, weight in names)
                drawn[what, scope] = np.sum([weight * draws[name] for name, weight in names], axis=0)
        for scope in self._scopes if self.steps > 1 else ():
            values["loss", scope] = values["learned", scope] - values["kept", scope]
            drawn["loss", scope] = drawn["learned", scope] - drawn["kept", scope]
        return Evidence(tuple(self._scopes), values, drawn, dict(self.choice))

    def _enter(self, step: Step) -> None:
        """Note where this step's samples belong, and take in what does not depend on a detector."""
        self._step, self._tasks = step, step.test_tasks()
        labels = step.columns[np.asarray(step.test.labels)]
        self._places = np.empty(len(labels), dtype=np.int64)
        for task in range(len(step.partition)):
            rows = np.flatnonzero(self._tasks == task)
            block = ("id", task, hashlib.sha256(labels[rows].astype(np.int64).tobytes()).digest())
            self._places[rows] = self.statistics.places(block, len(rows))
        sizes = {name: len(outputs.logits) for name, outputs in step.ood.items()}
        self._ood_places = {name: self.statistics.places(("ood", name, size), size) for name, size in sizes.items()}
        if self.steps > 1:
            self._within(step)
            self._own_channels(step)
        if step.has("features"):
            self._nearest(step)

    def _score(self, detector: str, scored: Scored) -> None:
        """Avg AUROC: even OOD samples to choose by, odd ones to report."""
        seen = int(self._tasks.max()) + 1
        weights = np.full(seen, 1 / (self.steps * seen))
        counts = np.bincount(self._tasks)
        for name, values in scored.ood.items():
            below = shares_below(scored.test, values[::2])
            average = float(np.mean(np.bincount(self._tasks, below) / counts)) / self.steps
            self.choice[detector] = self.choice.get(detector, 0.0) + self._scopes["all"][name] * average
            half = slice(1, None, 2) if len(values) > 1 else slice(None)
            self.statistics.add_auroc(
                (f"score:{detector}", name),
                *(weights, scored.test, self._tasks, self._places, values[half], self._ood_places[name][half]),
            )

    def _old(
        self,
        known: FloatArray,
        tasks: IntArray,
        places: IntArray,
        ood: Mapping[str, FloatArray],
        ood_places: Mapping[str, IntArray],
        names: tuple[str, str],
    ) -> None:
        """AUROC of the newest task at its own step, and of all old tasks at the last, by any score."""
        index = int(tasks.max())
        if self.steps == 1:
            return
        weights = np.full(index + 1, 1 / (self.steps - 1))
        weights[: -1 if index < self.steps - 1 else 0] = 0
        if index < self.steps - 1:
            own = tasks == index
            known, tasks, places = known[own], tasks[own], places[own]
        else:
            weights[-1] = 0
        what = names[index == self.steps - 1]
        for name, values in ood.items():
            self.statistics.add_auroc((what, name), weights, known, tasks, places, values, ood_places[name])

    def _own(self, of: str, task: int, rows: IntArray, known: FloatArray, ood: Mapping[str, FloatArray]) -> None:
        """As for energy, by scores of one task's samples that read nothing of other tasks: no gap enters."""
        assert self._step is not None
        weights, alone = np.full(1, 1 / (self.steps - 1)), np.zeros(len(rows), dtype=np.int64)
        what = f"{of}_{'kept' if self._step.index == self.steps - 1 else 'learned'}"
        for name, values in ood.items():
            args = (weights, known, alone, self._places[rows], values, self._ood_places[name])
            self.statistics.add_auroc((what, name), *args)

    def _own_channels(self, step: Step) -> None:
        """By the energy of the task's own channel alone."""
        logits = np.asarray(step.test.logits)
        for task in self._old_tasks(step):
            columns, rows = np.asarray(step.partition.tasks[task]), np.flatnonzero(self._tasks == task)
            ood = {name: energy(np.asarray(outputs.logits)[:, columns]) for name, outputs in step.ood.items()}
            self._own("own", task, rows, energy(logits[np.ix_(rows, columns)]), ood)

    def _own_means(self, step: Step, found: Nearest) -> None:
        """By the distance to the nearest class mean of the task."""
        features, labels = np.asarray(step.test.features), np.asarray(step.test.labels)[found.reference]
        for task in self._old_tasks(step):
            classes = [found.reference[labels == column] for column in step.partition.tasks[task]]
            means = np.stack([features[rows].mean(axis=0) for rows in classes if len(rows)])
            rows = found.rows[found.tasks == task]
            ood = {name: _to_nearest(np.asarray(outputs.features), means) for name, outputs in step.ood.items()}
            self._own("features", task, rows, _to_nearest(features[rows], means), ood)

    def _old_tasks(self, step: Step) -> Iterable[int]:
        """The task just learned; at the last step all but that."""
        return range(step.index) if step.index == self.steps - 1 else [step.index]

    def _within(self, step: Step) -> None:
        """Accuracy when the task is given: no gap between tasks enters."""
        logits, labels = np.asarray(step.test.logits), np.asarray(step.test.labels)
        last = step.index == self.steps - 1
        old = range(step.index) if last else [step.index]
        for task in old:
            columns = np.asarray(step.partition.tasks[task])
            rows = np.flatnonzero(self._tasks == task)
            right = columns[logits[np.ix_(rows, columns)].argmax(axis=1)] == labels[rows]
            weight = (-1 if last else 1) / (self.steps - 1)
            self.statistics.add_mean(("within", ""), weight, right.astype(np.float64), self._places[rows])

    def _nearest(self, step: Step) -> None:
        found = nearest(step, self.run.partition.first(self.steps)[0].columns, self.steps)
        if found is None:
            return
        logs = {name: np.log(np.maximum(values, 1e-12)) for name, values in found.ood.items()}
        known = np.log(np.maximum(found.known, 1e-12))
        self.distances.append((float(np.mean([log.mean() for log in logs.values()])), float(known.mean())))
        places = self._places[found.rows]
        ood_places = {name: self._ood_places[name][rows] for name, rows in found.ood_rows.items()}
        if self.steps == 1:
            return
        self._own_means(step, found)
        if step.index in (0, self.steps - 1):
            sign = 1 if step.index == 0 else -1
            for name, log in logs.items():
                self.statistics.add_mean(("nearer", name), sign, log, ood_places[name])
                self.statistics.add_mean(("nearer", name), -sign, known, places)

    def _last(self, step: Step, scored: Scored) -> None:
        """Energy at the last step, and with every channel re-centred.

        Re-centring uses the test data's own means, so that no luck of a small calibration set is in it, and nothing but
        the means: a scale estimated from few samples helps or hurts by chance. The error of the means is part of the
        interval.
        """
        every = np.full(self.steps, 1 / self.steps)
        for name, values in scored.ood.items():
            args = (scored.test, self._tasks, self._places, values, self._ood_places[name])
            self.statistics.add_auroc(("end", name), every, *args)
        if self.steps == 1:
            return
        newest = np.arange(self.steps) == self.steps - 1
        old = np.where(newest, 0.0, 1 / (self.steps - 1))
        for name, values in scored.ood.items():
            args = (scored.test, self._tasks, self._places, values, self._ood_places[name])
            self.statistics.add_auroc(("fresh", name), newest.astype(np.float64), *args)
        known = task_energies(np.asarray(step.test.logits, dtype=np.float64), step.partition)
        shift, errors, own = _levels(known, self._tasks)
        for name, outputs in step.ood.items():
            unknown = task_energies(np.asarray(outputs.logits, dtype=np.float64), step.partition)
            places = self._places, self._ood_places[name]
            args = ((known - shift).max(axis=1), self._tasks, places[0], (unknown - shift).max(axis=1), places[1])
            self.statistics.add_auroc(("recentred", name), old, *args)
            slopes = _slopes(known - shift, self._tasks, unknown - shift, errors, old)
            for task, slope in enumerate(slopes):
                rows = np.flatnonzero(self._tasks == task)
                parts = slope * (own[rows] - own[rows].mean()) / len(rows)
                self.statistics.add_part(("recentred", name), self._places[rows], parts)


def _levels(known: Float64Array, tasks: IntArray) -> tuple[Float64Array, Float64Array, Float64Array]:
    """What to subtract from each channel, the standard error of each mean, and each sample's own energy.

    Means that differ by no more than their errors are no gap: they are shrunk to their common mean (James and Stein).
    """
    own = known[np.arange(len(known)), tasks]
    counts = np.bincount(tasks)
    means = np.bincount(tasks, own) / counts
    errors = np.sqrt(np.maximum(np.bincount(tasks, (own - means[tasks]) ** 2) / counts, 1e-24) / counts)
    noise, spread = float(np.mean(errors**2)), float(np.var(means, ddof=1))
    keep = max(0.0, 1 - noise / spread) if spread > 0 else 0.0
    return keep * (means - means.mean()), errors, keep * own


def _slopes(
    known: Float64Array, tasks: IntArray, unknown: Float64Array, by: Float64Array, old: Float64Array
) -> Float64Array:
    """``[tasks]``: how the AUROC on old tasks changes with what is subtracted from each channel, over one error."""
    counts = np.bincount(tasks)
    found = np.zeros(known.shape[1])
    (own_winner, own_rest), (ood_winner, ood_rest) = _two_largest(known), _two_largest(unknown)
    for channel in range(known.shape[1]):
        others = np.where(own_winner == channel, own_rest[:, 1], own_rest[:, 0])
        ood_others = np.where(ood_winner == channel, ood_rest[:, 1], ood_rest[:, 0])
        sides = []
        for moved in (-by[channel], by[channel]):
            scores = np.maximum(others, known[:, channel] - moved)
            below = shares_below(scores, np.maximum(ood_others, unknown[:, channel] - moved))
            sides.append(float(old @ (np.bincount(tasks, below) / counts)))
        found[channel] = (sides[1] - sides[0]) / (2 * by[channel])
    return found


def _two_largest(energies: Float64Array) -> tuple[IntArray, Float64Array]:
    """The winning channel of each row, and the largest and second largest energy."""
    winner: IntArray = energies.argmax(axis=1)
    return winner, np.partition(energies, -2, axis=1)[:, :-3:-1]


def _to_nearest(features: FloatArray, means: FloatArray) -> Float64Array:
    """``[n]``: minus the squared distance to the nearest mean."""
    lengths = np.einsum("nd,nd->n", features, features, dtype=np.float64)
    squares = lengths[:, None] - 2 * features @ means.T + np.einsum("cd,cd->c", means, means)
    found: Float64Array = -squares.min(axis=1)
    return found


def energy_gap(step: Step, calibration: str | None = None) -> Gap:
    """The confidence gap at one step, on the calibration set and on the test data."""
    given = step.calibration(calibration)
    tasks = step.test_tasks()
    own = own_energies(step.test.logits, tasks, step.partition)
    spread = np.sqrt(np.mean([own[tasks == task].var() for task in range(len(step.partition))]))
    return Gap(
        tuple(confidence_gap(given.logits, given.labels, step.partition).tolist()),
        tuple(confidence_gap(step.test.logits, step.test.labels, step.partition).tolist()),
        float(spread),
    )


def nearest(step: Step, columns: int, steps: int) -> Nearest | None:
    """Distances at one step, from a fixed number of test samples per class; None if some task has too few."""
    per_class = max(1, MOST // (2 * columns))
    labels, features = np.asarray(step.test.labels), np.asarray(step.test.features)
    order = np.argsort(labels, kind="stable")
    ends = np.searchsorted(labels[order], np.arange(step.partition.columns + 1))
    by_class = [order[start:stop][: 2 * per_class] for start, stop in itertools.pairwise(ends)]
    reference, others = (np.concatenate([rows[half::2] for rows in by_class]) for half in (0, 1))
    tasks = step.test_tasks()[others]
    if len(np.unique(tasks)) < len(step.partition):
        return None
    most = MOST_LONG if steps > LONG else MOST
    rows = {
        name: np.arange(len(outputs.logits))[:: -(-len(outputs.logits) // most)] for name, outputs in step.ood.items()
    }
    sets = {name: np.asarray(step.ood[name].features)[chosen] for name, chosen in rows.items()}
    ood = {name: np.asarray(nearest_distance(x, features[reference])) for name, x in sets.items()}
    return Nearest(
        reference, np.asarray(nearest_distance(features[others], features[reference])), others, tasks, ood, rows
    )


def distances(run: Run, steps: int) -> Distances | None:
    """How near OOD samples come to ID ones, step by step; None if a step has no features or too few samples."""
    found = []
    columns = run.partition.first(steps)[0].columns
    for step in (Step(run, index) for index in range(steps)):
        near = nearest(step, columns, steps) if step.has("features") else None
        if near is None:
            return None
        logs = [np.log(np.maximum(values, 1e-12)) for values in (*near.ood.values(), near.known)]
        found.append((float(np.mean([log.mean() for log in logs[:-1]])), float(logs[-1].mean())))
    return from_logs(found)


def from_logs(logs: Sequence[tuple[float, float]]) -> Distances:
    """Distances from mean logarithms per step, of OOD and of ID samples."""
    ood, known = np.exp(np.array(logs)).T
    return Distances(tuple(ood.tolist()), tuple(known.tolist()))


def combine(parts: Sequence[Evidence]) -> Evidence:
    """The evidence of several seeds: their mean, with intervals over seeds and samples.

    Runs are drawn with replacement, and each resample's deviation is widened by √(S / (S - 1)) since few seeds show too
    little of their spread.
    """
    if len(parts) == 1:
        return parts[0]
    count = len(parts)
    names = [name for name in parts[0].values if all(name in part.values for part in parts)]
    chosen = np.random.default_rng(count).integers(count, size=(RESAMPLES, count))
    values, draws = {}, {}
    for name in names:
        values[name] = float(np.mean([part.values[name] for part in parts]))
        stacked = np.stack([part.draws[name] for part in parts], axis=1)
        means = np.take_along_axis(stacked, chosen, axis=1).mean(axis=1)
        draws[name] = values[name] + (means - values[name]) * np.sqrt(count / (count - 1))
    shared = [name for name in parts[0].choice if all(name in part.choice for part in parts)]
    choice = {name: float(np.mean([part.choice[name] for part in parts])) for name in shared}
    return Evidence(parts[0].scopes, values, draws, choice, count)

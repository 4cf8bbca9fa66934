"""The evidence of an audit: what was lost, what re-centring restores, what the features alone show.

A :class:`Collector` reads each step once, while its scores are measured. Everything it collects has a bootstrap
distribution over samples. Nothing is decided here.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np

from tood.arrays import Float64Array, IntArray
from tood.audit.bootstrap import RESAMPLES, Estimate, Statistics, auroc_by_task, estimate
from tood.audit.counterfactual import Change, levels, restored, slopes
from tood.audit.distances import log_of, nearest
from tood.audit.responses import Responses
from tood.energy import task_energies
from tood.runs.directory import Run
from tood.runs.score import Scored, Scorer
from tood.runs.steps import Step

__all__ = ["Collector", "Evidence", "combine", "scope_weights"]


@dataclass(frozen=True)
class Evidence:
    """Statistics of one run, or of several seeds: values and bootstrap draws by ``(what, scope)``.

    AUROCs, each the mean over old tasks: ``learned`` and ``kept`` (energy at each task's own step and at the last),
    ``recentred`` (at the last step, every channel re-centred), ``channels`` (also, old logits respond to their
    features as they did) and ``restored`` (also, they respond as they did when the task was new).

    Others: ``loss`` (``learned`` minus ``kept``: D_avg), ``fresh`` (energy, the newest task, last step), ``end``
    (energy, all tasks, last step), ``nearer`` (log of how much nearer OOD has come to ID), ``within`` (accuracy lost
    when the task is given), ``score:NAME`` (Avg AUROC on the reported half of the OOD samples).

    ``choice`` has the Avg AUROC of each score on the other half.
    """

    scopes: tuple[str, ...]
    values: dict[tuple[str, str], float]
    draws: dict[tuple[str, str], Float64Array]
    choice: dict[str, float] = field(default_factory=dict)
    seeds: int = 1

    def estimate(self, what: str, scope: str = "all") -> Estimate:
        """A statistic with its interval."""
        return estimate(self.values[what, scope], self.draws[what, scope])


def scope_weights(groups: Mapping[str, str]) -> dict[str, dict[str, float]]:
    """The weight of each OOD set in each group, and in ``all``, which weighs near and far equally.

    >>> scope_weights({"a": "near", "b": "far", "c": "far"})["all"]
    {'a': 0.5, 'b': 0.25, 'c': 0.25}
    """
    weights = {}
    for group in dict.fromkeys(groups.values()):
        names = [name for name in groups if groups[name] == group]
        weights[group] = dict.fromkeys(names, 1 / len(names))
    every = {name: weight / len(weights) for of_group in weights.values() for name, weight in of_group.items()}
    return {**weights, "all": every}


class Collector:
    """Collects the evidence of a run while its steps are scored in order.

    Parameters
    ----------
    run:
        The run.
    steps:
        Number of steps, T.
    """

    def __init__(self, run: Run, steps: int) -> None:
        self.run = run
        self.steps = steps
        self.statistics = Statistics()
        self.choice: dict[str, float] = {}
        self.distances: list[tuple[float, float]] = []
        self._scopes = scope_weights(run.ood)
        self._responses = Responses(steps)
        self._step: Step | None = None

    def __call__(self, step: Step, scorer: Scorer, scored: Scored) -> None:
        """Take in the scores of one detector at one step."""
        if step is not self._step:
            self._enter(step)
        if scorer.settings() == "":
            self._score(scorer.detector, scored)
            if scorer.detector == "energy":
                self._energy(step, scored)

    def evidence(self) -> Evidence:
        """Everything collected, by scope."""
        by_set: dict[Any, float] = dict(self.statistics.values)  # by (what, OOD set); ("within", "") has no set
        if len(self.distances) < self.steps:  # some step has no features, or too few samples
            by_set = {name: value for name, value in by_set.items() if name[0] != "nearer"}
        by_set_draws = self.statistics.draws(by_set)
        values: dict[tuple[str, str], float] = {}
        draws: dict[tuple[str, str], Float64Array] = {}
        for what in dict.fromkeys(what for what, _ in by_set):
            for scope, weights in self._scopes.items():
                own = {"": 1.0} if (what, "") in by_set else weights
                values[what, scope] = sum(weight * by_set[what, name] for name, weight in own.items())
                draws[what, scope] = np.sum([w * by_set_draws[what, name] for name, w in own.items()], axis=0)
        if self.steps > 1:
            for scope in self._scopes:
                values["loss", scope] = values["learned", scope] - values["kept", scope]
                draws["loss", scope] = draws["learned", scope] - draws["kept", scope]
        return Evidence(tuple(self._scopes), values, draws, dict(self.choice))

    def _enter(self, step: Step) -> None:
        """Index the samples of a step, and take in what does not depend on a detector.

        The test samples of a task that have the same labels at two steps are the same images.
        """
        self._step, self._tasks = step, step.test_tasks()
        labels = step.columns[np.asarray(step.test.labels)]
        self._indices = np.empty(len(labels), dtype=np.int64)
        for task in range(len(step.partition)):
            rows = np.flatnonzero(self._tasks == task)
            block = ("id", task, hashlib.sha256(labels[rows].astype(np.int64).tobytes()).digest())
            self._indices[rows] = self.statistics.indices(block, len(rows))
        sizes = {name: len(outputs.logits) for name, outputs in step.ood.items()}
        self._ood_indices = {name: self.statistics.indices(("ood", name, size), size) for name, size in sizes.items()}
        if self.steps > 1:
            self._within(step)
            self._responses.add_logits(step, self._tasks, self._indices)
        if step.has("features"):
            self._nearest(step)

    def _score(self, detector: str, scored: Scored) -> None:
        """Avg AUROC: one half of the OOD samples to choose by, the other to report."""
        seen = int(self._tasks.max()) + 1
        weights = np.full(seen, 1 / (self.steps * seen))
        for name, ood in scored.ood.items():
            choose, report = halves(len(ood))
            average = float(np.mean(auroc_by_task(scored.test, self._tasks, ood[choose]))) / self.steps
            self.choice[detector] = self.choice.get(detector, 0.0) + self._scopes["all"][name] * average
            id_samples = scored.test, self._tasks, self._indices
            ood_indices = self._ood_indices[name][report]
            self.statistics.add_auroc((f"score:{detector}", name), weights, *id_samples, ood[report], ood_indices)

    def _energy(self, step: Step, scored: Scored) -> None:
        """AUROC by energy: of each task at its own step, and of all tasks at the last step."""
        if step.index < self.steps - 1:
            weights = np.zeros(step.index + 1)
            weights[-1] = 1 / (self.steps - 1)
            self._add_aurocs("learned", weights, scored, self._tasks == step.index)
            return
        self._add_aurocs("end", np.full(self.steps, 1 / self.steps), scored)
        if self.steps > 1:
            self._add_aurocs("kept", self._old_tasks(), scored)
            self._add_aurocs("fresh", (np.arange(self.steps) == self.steps - 1).astype(np.float64), scored)
            self._counterfactuals(step)

    def _add_aurocs(self, what: str, weights: Float64Array, scored: Scored, rows: Any = slice(None)) -> None:
        """Add the AUROC of some test samples against each OOD set."""
        for name, ood in scored.ood.items():
            id_samples = scored.test[rows], self._tasks[rows], self._indices[rows]
            self.statistics.add_auroc((what, name), weights, *id_samples, ood, self._ood_indices[name])

    def _old_tasks(self) -> Float64Array:
        """Weights of the mean over all tasks but the newest, at the last step."""
        weights = np.full(self.steps, 1 / (self.steps - 1))
        weights[-1] = 0
        return weights

    def _within(self, step: Step) -> None:
        """Accuracy when the task is given, which no gap between tasks affects."""
        logits, labels = np.asarray(step.test.logits), np.asarray(step.test.labels)
        weight = (-1 if step.index == self.steps - 1 else 1) / (self.steps - 1)
        for task in self._responses.tasks_at(step):
            columns = np.asarray(step.partition.tasks[task])
            rows = np.flatnonzero(self._tasks == task)
            right = columns[logits[np.ix_(rows, columns)].argmax(axis=1)] == labels[rows]
            self.statistics.add_mean(("within", ""), weight, right.astype(np.float64), self._indices[rows])

    def _nearest(self, step: Step) -> None:
        """Distances of OOD samples to ID samples, and the responses of features."""
        near = nearest(step, self.run.partition.first(self.steps)[0].columns, self.steps)
        if near is None:
            return
        self.distances.append(near.mean_logs())
        if self.steps == 1:
            return
        self._responses.add_features(step, self._tasks, self._indices, near)
        if step.index in (0, self.steps - 1):
            sign = 1 if step.index == 0 else -1
            for name, ood in near.ood.items():
                ood_indices = self._ood_indices[name][near.ood_rows[name]]
                self.statistics.add_mean(("nearer", name), sign, log_of(ood), ood_indices)
                self.statistics.add_mean(("nearer", name), -sign, log_of(near.known), self._indices[near.rows])

    def _counterfactuals(self, step: Step) -> None:
        """AUROC at the last step with every channel re-centred, and with old tasks restored.

        Re-centring uses the means of the test data itself, so a small calibration set adds no noise. It uses only the
        means, because a scale estimated from few samples helps or hurts by chance. The errors of what is subtracted
        are part of the interval.
        """
        energies = task_energies(np.asarray(step.test.logits, dtype=np.float64), step.partition)
        shifts, shift_influence, error = levels(energies, self._tasks)
        falls = {"recentred": [], "restored": self._responses.falls(features=False)}
        if len(self.distances) == self.steps:
            falls["channels"] = self._responses.falls(features=True)
        for name, outputs in step.ood.items():
            ood_energies = task_energies(np.asarray(outputs.logits, dtype=np.float64), step.partition)
            for what, changes in falls.items():
                centred = energies - shifts, ood_energies - shifts
                self._counterfactual((what, name), *centred, changes, shift_influence, error)

    def _counterfactual(
        self,
        name: tuple[str, str],
        energies: Float64Array,
        ood_energies: Float64Array,
        falls: Sequence[Change],
        shift_influence: Float64Array,
        error: float,
    ) -> None:
        """Add the AUROC of old tasks by the largest energy, each channel lowered by what its task fell."""
        lowered = np.zeros(self.steps)
        lowered[: len(falls)] = [change.value for change in falls]
        energies, ood_energies = restored(energies, lowered, self._tasks), restored(ood_energies, lowered)
        weights = self._old_tasks()
        id_samples = energies.max(axis=1), self._tasks, self._indices
        self.statistics.add_auroc(name, weights, *id_samples, ood_energies.max(axis=1), self._ood_indices[name[1]])
        slope = slopes(energies, self._tasks, ood_energies, weights, error, own=True)
        self.statistics.add_influence(name, self._indices, slope[self._tasks] * shift_influence)
        if falls:
            slope = slopes(energies, self._tasks, ood_energies, weights, error, own=False)
        for task, change in enumerate(falls):
            for indices, influence in change.influences:
                self.statistics.add_influence(name, indices, slope[task] * influence)


@lru_cache
def halves(size: int) -> tuple[IntArray, IntArray]:
    """The rows of two random halves, the same at every step; files may be sorted, or alternate between kinds."""
    order = np.random.default_rng(size).permutation(size)
    first = np.sort(order[: (size + 1) // 2])
    return first, np.sort(order[(size + 1) // 2 :]) if size > 1 else first


def combine(seeds: Sequence[Evidence]) -> Evidence:
    """The evidence of several seeds: their mean, with intervals over seeds and samples.

    Seeds are drawn with replacement. Each resample's deviation is widened by √(S / (S - 1)), because S seeds show too
    little of their spread.
    """
    if len(seeds) == 1:
        return seeds[0]
    count = len(seeds)
    chosen = np.random.default_rng(count).integers(count, size=(RESAMPLES, count))
    values, draws = {}, {}
    for name in seeds[0].values:
        if all(name in one.values for one in seeds):
            values[name] = float(np.mean([one.values[name] for one in seeds]))
            stacked = np.stack([one.draws[name] for one in seeds], axis=1)
            means = np.take_along_axis(stacked, chosen, axis=1).mean(axis=1)
            draws[name] = values[name] + (means - values[name]) * np.sqrt(count / (count - 1))
    shared = [name for name in seeds[0].choice if all(name in one.choice for one in seeds)]
    choice = {name: float(np.mean([one.choice[name] for one in seeds])) for name in shared}
    return Evidence(seeds[0].scopes, values, draws, choice, count)

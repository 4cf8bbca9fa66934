"""The evidence of an audit: what was lost, what re-centring restores, what the features alone show.

A :class:`Collector` reads each step once, while its scores are measured. Everything it collects has a bootstrap
distribution over samples. Nothing is decided here.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, TypeAlias

import numpy as np

from tood.arrays import Float64Array, FloatArray, IntArray
from tood.audit.distances import log_of, nearest
from tood.audit.responses import Responses, levels, restored
from tood.calibration.statistics import all_energies
from tood.evaluation.metrics_file import BACKBONE
from tood.evaluation.score import Scored, Scorer
from tood.metrics.resampling import Drawn, Samples, TaskScores, WithInterval, auroc_by_task, interval
from tood.outputs.directory import Run
from tood.outputs.steps import Step

__all__ = ["Collector", "Evidence", "scope_weights"]

SetScores: TypeAlias = Mapping[str, FloatArray]  # per OOD set
ALL = slice(None)


@dataclass(frozen=True)
class Evidence:
    """Statistics of one run: a value and its resamples by ``(what, scope)``.

    AUROCs, each the mean over old tasks: ``learned`` and ``kept`` (energy at each task's own step and at the last);
    at the last step, ``recentred`` (every channel re-centred), ``channels`` (re-centred, and logits respond to the
    features as strongly as when the task was new) and ``restored`` (re-centred, and logits respond to the samples as
    strongly as when the task was new).

    Others: ``loss`` (``learned`` minus ``kept``: D_avg), ``fresh`` (energy, the newest task, last step), ``end``
    (energy, all tasks, last step), ``nearer`` (log of how much nearer OOD has come to ID), ``score:NAME`` (Avg AUROC on
    the reported half of the OOD samples).

    ``choice`` has the Avg AUROC of each score on the other half.
    """

    scopes: tuple[str, ...]
    drawn: dict[tuple[str, str], Drawn]
    choice: dict[str, float] = field(default_factory=dict)

    def estimate(self, what: str, scope: str = "all") -> WithInterval:
        """A statistic with its interval."""
        return interval(self.drawn[what, scope])


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
        self.samples = Samples()
        self.choice: dict[str, float] = {}
        self._with_distances = 0  # steps
        self._scopes = scope_weights(run.ood)
        self._responses = Responses(steps)
        self._step: Step | None = None

    def __call__(self, step: Step, scorer: Scorer, scored: Scored) -> None:
        """Take in the scores of one detector at one step."""
        if step is not self._step:
            self._enter(step)
        if (settings := scorer.settings) in ("", BACKBONE):
            self._score(scorer.detector + " (backbone features)" * bool(settings), scored)
            if scorer.detector == "energy":
                self._energy(step, scored)

    def evidence(self) -> Evidence:
        """Everything collected, by scope."""
        by_set: dict[Any, Drawn] = dict(self.samples.drawn())  # by (what, OOD set)
        drawn: dict[tuple[str, str], Drawn] = {}
        for what in dict.fromkeys(what for what, _ in by_set):
            for scope, weights in self._scopes.items():
                drawn[what, scope] = sum((weight * by_set[what, name] for name, weight in weights.items()), np.zeros(1))
        for scope in self._scopes if self.steps > 1 else ():
            drawn["loss", scope] = drawn["learned", scope] - drawn["kept", scope]
        return Evidence(tuple(self._scopes), drawn, dict(self.choice))

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
            self._indices[rows] = self.samples.indices(block, len(rows))
        sizes = {name: len(outputs.logits) for name, outputs in step.ood.items()}
        self._ood_indices = {name: self.samples.indices(("ood", name, size), size) for name, size in sizes.items()}
        if self.steps > 1:
            self._responses.add_logits(step, self._tasks)
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
            self._add(f"score:{detector}", weights, scored.test, {name: ood}, report)

    def _energy(self, step: Step, scored: Scored) -> None:
        """AUROC by energy: of each task at its own step, and of all tasks at the last step."""
        newest = np.eye(step.index + 1)[-1]
        if step.index < self.steps - 1:
            self._add("learned", newest / (self.steps - 1), scored.test, scored.ood)
            return
        self._add("end", np.full(self.steps, 1 / self.steps), scored.test, scored.ood)
        if self.steps > 1:
            old = (1 - newest) / (self.steps - 1)
            self._add("kept", old, scored.test, scored.ood)
            self._add("fresh", newest, scored.test, scored.ood)
            self._counterfactuals(step, old)

    def _add(self, what: str, weights: Float64Array, test: FloatArray, sets: SetScores, rows: Any = ALL) -> None:
        """Add the tasks' AUROCs against some rows of OOD sets, each task with its weight."""
        for name, ood in sets.items():
            known = TaskScores(test, self._tasks, self._indices)
            self.samples.add_auroc((what, name), weights, known, ood[rows], self._ood_indices[name][rows])

    def _nearest(self, step: Step) -> None:
        """Distances of OOD samples to ID samples, at the first and the last step, and the responses of features."""
        near = nearest(step, self.run.partition.first(self.steps)[0].columns, self.steps)
        if near is None:
            return
        self._with_distances += 1
        self._responses.add_features(step, self._tasks, near.halves)
        sign = {0: 1.0, self.steps - 1: -1.0}.get(step.index, 0.0)
        for name, ood in near.ood.items() if sign else ():
            self.samples.add_mean(("nearer", name), sign, log_of(ood), self._ood_indices[name][near.ood_rows[name]])
            self.samples.add_mean(("nearer", name), -sign, log_of(near.known), self._indices[near.halves[1]])

    def _counterfactuals(self, step: Step, old: Float64Array) -> None:
        """AUROC at the last step with every channel re-centred, and with old tasks restored.

        Re-centring uses the means of the test data itself, so a small calibration set adds no noise. It uses only the
        means, because a scale estimated from few samples helps or hurts by chance. What is subtracted is the same in
        every resample.
        """
        energies = all_energies(step.test.logits, step.partition)
        shifts = levels(energies, self._tasks)
        oods = {name: all_energies(outputs.logits, step.partition) - shifts for name, outputs in step.ood.items()}
        falls = {"recentred": np.zeros(self.steps), "restored": self._responses.falls(features=False)}
        if self._with_distances == self.steps:  # every step has features, and enough samples
            falls["channels"] = self._responses.falls(features=True)
        for what, fell in falls.items():
            test = restored(energies - shifts, fell, self._tasks)
            self._add(what, old, test, {name: restored(ood, fell) for name, ood in oods.items()})


@lru_cache
def halves(size: int) -> tuple[IntArray, IntArray]:
    """The rows of two random halves, the same at every step; files may be sorted, or alternate between kinds."""
    order = np.random.default_rng(size).permutation(size)
    first = np.sort(order[: (size + 1) // 2])
    return first, np.sort(order[(size + 1) // 2 :]) if size > 1 else first

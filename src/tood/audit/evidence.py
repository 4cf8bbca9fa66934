"""The evidence an audit rests on: what was lost, what re-centring gives back, what the features alone show.

A :class:`Collector` reads each step once, while its scores are measured. Everything it gathers has a bootstrap
distribution over samples; nothing here decides anything.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from tood.arrays import Float64Array, FloatArray, IntArray
from tood.audit.bootstrap import RESAMPLES, Estimate, Statistics, estimate, shares_below
from tood.audit.counterfactual import Change, levels, restored, slopes
from tood.audit.distances import nearest
from tood.audit.responses import Responses
from tood.energy import task_energies
from tood.runs.directory import Run
from tood.runs.score import Scored, Scorer
from tood.runs.steps import Step

__all__ = ["Collector", "Evidence", "combine", "scope_weights"]


@dataclass(frozen=True)
class Evidence:
    """Statistics of one run, or of several seeds, by name: values and bootstrap draws.

    Names are ``(what, scope)``. AUROCs, each the mean over old tasks: ``learned`` and ``kept`` (energy at each task's
    own step and at the last), ``recentred`` (at the last step, every channel re-centred), ``channels`` (as before, and
    old logits respond to their features as they did) and ``restored`` (as before, and they respond as they did when
    the task was new). Further: ``loss`` (``learned`` minus ``kept``: D_avg), ``fresh`` (energy, the newest task, last
    step), ``end`` (energy, all tasks, last step), ``nearer`` (log of how much nearer OOD has come to ID), ``within``
    (accuracy lost when the task is given), ``score:NAME`` (Avg AUROC on the reported half of the OOD samples).
    ``choice`` holds Avg AUROC on the other half.
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
        self._responses = Responses(steps)
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
            sets = [name for name in sets if name[0] != "nearer"]  # type: ignore[index]
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
            self._responses.take_logits(step, self._tasks, self._places)
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

    def _within(self, step: Step) -> None:
        """Accuracy when the task is given: no gap between tasks enters."""
        logits, labels = np.asarray(step.test.logits), np.asarray(step.test.labels)
        last = step.index == self.steps - 1
        for task in self._responses.old_tasks(step):
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
        self._responses.take_features(step, self._tasks, self._places, found)
        if step.index in (0, self.steps - 1):
            sign = 1 if step.index == 0 else -1
            for name, log in logs.items():
                self.statistics.add_mean(("nearer", name), sign, log, ood_places[name])
                self.statistics.add_mean(("nearer", name), -sign, known, places)

    def _last(self, step: Step, scored: Scored) -> None:
        """Energy at the last step, with every channel re-centred, and with old tasks restored.

        Re-centring uses the test data's own means, so that no luck of a small calibration set is in it, and nothing but
        the means: a scale estimated from few samples helps or hurts by chance. The errors of what is subtracted are
        part of the interval.
        """
        every = np.full(self.steps, 1 / self.steps)
        newest = (np.arange(self.steps) == self.steps - 1).astype(np.float64)
        for name, values in scored.ood.items():
            args = (scored.test, self._tasks, self._places, values, self._ood_places[name])
            self.statistics.add_auroc(("end", name), every, *args)
            if self.steps > 1:
                self.statistics.add_auroc(("fresh", name), newest, *args)
        if self.steps == 1:
            return
        known = task_energies(np.asarray(step.test.logits, dtype=np.float64), step.partition)
        shift, shift_parts, error = levels(known, self._tasks)
        falls = {"recentred": [], "restored": self._responses.fell(features=False)}
        if len(self.distances) == self.steps:
            falls["channels"] = self._responses.fell(features=True)
        old = (1 - newest) / (self.steps - 1)
        for name, outputs in step.ood.items():
            unknown = task_energies(np.asarray(outputs.logits, dtype=np.float64), step.partition)
            for what, fell in falls.items():
                self._counterfactual((what, name), known - shift, unknown - shift, fell, (old, shift_parts, error))

    def _counterfactual(
        self,
        what: tuple[str, str],
        known: Float64Array,
        unknown: Float64Array,
        fell: Sequence[Change],
        given: tuple[Float64Array, Float64Array, float],
    ) -> None:
        """AUROC of the largest energy on old tasks, with channels lowered by what their tasks fell."""
        old, shift_parts, error = given
        lowered = np.zeros(self.steps)
        lowered[: len(fell)] = [change.value for change in fell]
        known, unknown = restored(known, lowered, self._tasks), restored(unknown, lowered)
        places = self._ood_places[what[1]]
        args = (known.max(axis=1), self._tasks, self._places, unknown.max(axis=1), places)
        self.statistics.add_auroc(what, old, *args)
        slope = slopes(known, self._tasks, unknown, old, error, own=True)
        self.statistics.add_part(what, self._places, slope[self._tasks] * shift_parts)
        if fell:
            slope = slopes(known, self._tasks, unknown, old, error, own=False)
        for task, change in enumerate(fell):
            for samples, parts in change.parts:
                self.statistics.add_part(what, samples, slope[task] * parts)


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

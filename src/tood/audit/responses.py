"""Responses of a run's tasks, at their own step and at the last, in logits and in features."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from tood.arrays import Float64Array, IntArray
from tood.audit.counterfactual import Change, Response, fallen, response, share_left
from tood.audit.distances import Nearest
from tood.runs.steps import Step

__all__ = ["Responses"]

WHOLE = Change(1.0, ())


class Responses:
    """Gathers the responses of all tasks but the newest.

    Parameters
    ----------
    steps:
        How many steps there are, T.
    """

    def __init__(self, steps: int) -> None:
        self.steps = steps
        self._found: dict[tuple[str, int, bool], Response | None] = {}

    def old_tasks(self, step: Step) -> Iterable[int]:
        """The task just learned; at the last step all but that."""
        return range(step.index) if step.index == self.steps - 1 else [step.index]

    def take_logits(self, step: Step, tasks: IntArray, places: IntArray) -> None:
        """Of logits, over all test samples of a task and those before it."""
        logits, labels = np.asarray(step.test.logits), np.asarray(step.test.labels)
        for task in self.old_tasks(step):
            rows = np.flatnonzero(tasks <= task)
            scores = logits[np.ix_(rows, np.asarray(step.partition.tasks[task]))]
            found = response(scores, _order(step, task)[labels[rows]], places[rows])
            self._found["logits", task, step.index == self.steps - 1] = found

    def take_features(self, step: Step, tasks: IntArray, places: IntArray, near: Nearest) -> None:
        """Of features, on each half of the samples along the way to a class's mean in the other half."""
        features, labels = np.asarray(step.test.features), np.asarray(step.test.labels)
        halves = near.reference, near.rows
        means = [_class_means(features[rows], labels[rows], step.partition.columns) for rows in halves]
        for task in self.old_tasks(step):
            seen, chosen, scores = step.partition.column_tasks <= task, [], []
            for half, (centre, count) in zip(halves, reversed(means), strict=True):
                own = centre[list(step.partition.tasks[task])]
                others = (centre[seen].sum(axis=0) - own) / max(1, int(count[seen].astype(bool).sum()) - 1)
                ways = (own - others) / np.maximum(np.linalg.norm(own - others, axis=1, keepdims=True), 1e-12)
                chosen.append(half[tasks[half] <= task])
                scores.append(features[chosen[-1]] @ ways.T - np.einsum("kd,kd->k", others, ways))
            rows = np.concatenate(chosen)
            found = response(np.concatenate(scores), _order(step, task)[labels[rows]], places[rows])
            self._found["features", task, step.index == self.steps - 1] = found

    def fell(self, features: bool) -> list[Change]:
        """What each old task fell; ``features``: beyond what its features lost. Empty if unknown."""
        found = []
        for task in range(self.steps - 1):
            before, now = (self._found.get(("logits", task, end)) for end in (False, True))
            seen, left = (self._found.get(("features", task, end)) for end in (False, True))
            share = share_left(seen, left) if features and seen and left else WHOLE
            found.append(fallen(before, now, share) if before and now else Change(0.0, ()))
        return found


def _order(step: Step, task: int) -> IntArray:
    """``[columns]``: the rank of each column within a task; -1 for other columns."""
    found = np.full(step.partition.columns, -1)
    found[list(step.partition.tasks[task])] = np.arange(len(step.partition.tasks[task]))
    return found


def _class_means(features: Float64Array, labels: IntArray, columns: int) -> tuple[Float64Array, IntArray]:
    """``[columns, D]`` means, 0 without samples, and counts."""
    counts = np.bincount(labels, minlength=columns)
    sums = np.zeros((columns, features.shape[1]))
    seen, first = np.unique(np.sort(labels), return_index=True)
    sums[seen] = np.add.reduceat(features[np.argsort(labels, kind="stable")], first, dtype=np.float64)
    return sums / np.maximum(counts, 1)[:, None], counts

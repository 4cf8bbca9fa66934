"""Responses of a run's tasks, at their own step and at the last, in logits and in features."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

import numpy as np

from tood.arrays import Float64Array, IntArray
from tood.audit.counterfactual import Change, Response, fallen, response, share_left
from tood.audit.distances import Nearest
from tood.runs.steps import Step

__all__ = ["Responses"]

ALL = Change(1.0, ())  # as if the features had lost nothing


class Responses:
    """Collects the responses of all tasks but the newest.

    Parameters
    ----------
    steps:
        Number of steps, T.
    """

    def __init__(self, steps: int) -> None:
        self.steps = steps
        self._responses: dict[tuple[str, int, bool], Response | None] = {}  # (kind, task, whether at the last step)

    def tasks_at(self, step: Step) -> Iterable[int]:
        """The tasks whose response is measured at a step: the task just learned; at the last step all older ones."""
        return range(step.index) if step.index == self.steps - 1 else [step.index]

    def add_logits(self, step: Step, tasks: IntArray, indices: IntArray) -> None:
        """Responses of the logits, over all test samples of a task and of earlier tasks."""
        logits = np.asarray(step.test.logits)
        for task in self.tasks_at(step):
            rows = np.flatnonzero(tasks <= task)
            scores = logits[np.ix_(rows, np.asarray(step.partition.tasks[task]))]
            self._add("logits", step, task, scores, rows, indices)

    def add_features(self, step: Step, tasks: IntArray, indices: IntArray, near: Nearest) -> None:
        """Responses of the features: each half of the samples, projected towards class means of the other half."""
        features, labels = np.asarray(step.test.features), np.asarray(step.test.labels)
        halves = near.reference, near.rows
        means = [_class_means(features[rows], labels[rows], step.partition.columns) for rows in halves]
        for task in self.tasks_at(step):
            seen, rows, scores = step.partition.column_tasks <= task, [], []
            for half, (centres, counts) in zip(halves, reversed(means), strict=True):
                own = centres[list(step.partition.tasks[task])]
                others = (centres[seen].sum(axis=0) - own) / max(1, np.count_nonzero(counts[seen]) - 1)
                axes = (own - others) / np.maximum(np.linalg.norm(own - others, axis=1, keepdims=True), 1e-12)
                chosen = half[tasks[half] <= task]
                rows.append(chosen)
                scores.append(features[chosen] @ axes.T - np.einsum("kd,kd->k", others, axes))
            self._add("features", step, task, np.concatenate(scores), np.concatenate(rows), indices)

    def falls(self, features: bool) -> list[Change]:
        """How far the logits of each old task fell; ``features``: beyond what its features lost. 0 if unknown."""
        falls = []
        for task in range(self.steps - 1):
            before, now = (self._responses.get(("logits", task, last)) for last in (False, True))
            features_before, features_now = (self._responses.get(("features", task, last)) for last in (False, True))
            left = share_left(features_before, features_now) if features and features_before and features_now else ALL
            falls.append(fallen(before, now, left) if before and now else Change(0.0, ()))
        return falls

    def _add(
        self,
        kind: Literal["logits", "features"],
        step: Step,
        task: int,
        scores: Float64Array,
        rows: IntArray,
        indices: IntArray,
    ) -> None:
        columns = step.partition.tasks[task]
        rank = np.full(step.partition.columns, -1)  # of a column within the task; -1 for columns of other tasks
        rank[list(columns)] = np.arange(len(columns))
        classes = rank[np.asarray(step.test.labels)[rows]]
        self._responses[kind, task, step.index == self.steps - 1] = response(scores, classes, indices[rows])


def _class_means(features: Float64Array, labels: IntArray, columns: int) -> tuple[Float64Array, IntArray]:
    """``[columns, D]`` means, 0 without samples, and ``[columns]`` counts."""
    counts = np.bincount(labels, minlength=columns)
    sums = np.zeros((columns, features.shape[1]))
    present, first = np.unique(np.sort(labels), return_index=True)
    sums[present] = np.add.reduceat(features[np.argsort(labels, kind="stable")], first, dtype=np.float64)
    return sums / np.maximum(counts, 1)[:, None], counts

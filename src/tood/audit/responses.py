"""What old tasks would score if one thing had not changed: their level, or how strongly they respond.

The *response* of a task is how far the logit of a class stands out on samples of that class from the same logit on
other ID samples, in units of the spread within both (d'). It uses ID samples only, so nothing that OOD does along the
stream affects it. Restoring a task at the last step lowers its channel, on all other samples, by what the task fell.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from tood.arrays import Float64Array, FloatArray, IntArray
from tood.outputs.steps import Step

__all__ = ["Response", "Responses", "levels", "response", "restored"]


class Response(NamedTuple):
    """How far a task's columns stand out on samples of their own classes."""

    height: float  # mean over classes: on the class's own samples minus on others
    spread: float  # within own samples and within others, pooled

    @property
    def value(self) -> float:
        """The height in units of the spread."""
        return self.height / self.spread


def response(scores: FloatArray, own: npt.NDArray[np.bool_]) -> Response | None:
    """The response of one task; None if no class has both samples of its own and others to compare with.

    Parameters
    ----------
    scores, own:
        ``[n, K]``, one column per class of the task, and whether the sample is of the class.
    """
    present = own.any(axis=0) & ~own.all(axis=0)
    if not present.any():
        return None
    values, own = np.asarray(scores, dtype=np.float64)[:, present], own[:, present]
    own_means, other_means = (values.mean(axis=0, where=rows) for rows in (own, ~own))
    squares = (values - np.where(own, own_means, other_means)) ** 2
    variance = (squares.mean(where=own) + squares.mean(where=~own)) / 2
    return Response(float(np.mean(own_means - other_means)), float(np.sqrt(max(variance, 1e-24))))


def levels(energies: Float64Array, tasks: IntArray) -> Float64Array:
    """``[tasks]``: what to subtract from each channel so that all tasks have the same level.

    Means that differ by no more than their errors are no gap, so they are shrunk to their common mean (James and
    Stein).

    Parameters
    ----------
    energies, tasks:
        ``[n, tasks]`` task energies of ID samples, and ``[n]`` their tasks.
    """
    own = energies[np.arange(len(energies)), tasks]
    counts = np.bincount(tasks)
    means: Float64Array = np.bincount(tasks, own) / counts
    noise = np.mean(np.bincount(tasks, (own - means[tasks]) ** 2) / counts**2)
    spread = np.var(means, ddof=1)
    return max(0.0, 1 - noise / spread) * (means - means.mean()) if spread > 0 else np.zeros_like(means)


def restored(energies: Float64Array, fell: Float64Array, tasks: IntArray | None = None) -> Float64Array:
    """``[n]``: the largest energy, with every channel lowered by what its task fell, except on the task's own samples.

    ``tasks``: the tasks of the samples; None for OOD samples.
    """
    lowered = energies - fell
    if tasks is not None:
        lowered[np.arange(len(lowered)), tasks] += fell[tasks]
    largest: Float64Array = lowered.max(axis=1)
    return largest


class Responses:
    """The responses of all tasks but the newest, at their own step and at the last, in logits and in features.

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

    def add_logits(self, step: Step, tasks: IntArray) -> None:
        """Responses of the logits, over all test samples of a task and of earlier tasks."""
        logits = np.asarray(step.test.logits)
        for task in self.tasks_at(step):
            rows = np.flatnonzero(tasks <= task)
            self._add("logits", step, task, logits[np.ix_(rows, np.asarray(step.partition.tasks[task]))], rows)

    def add_features(self, step: Step, tasks: IntArray, halves: tuple[IntArray, IntArray]) -> None:
        """Responses of the features: each half of the samples, projected towards class means of the other half."""
        features, labels = np.asarray(step.test.features, dtype=np.float64), np.asarray(step.test.labels)
        members = [np.eye(step.partition.columns)[labels[rows]].T for rows in halves]
        sums = [own @ features[rows] for own, rows in zip(members, halves, strict=True)]
        means = [s / np.maximum(own.sum(axis=1), 1)[:, None] for s, own in zip(sums, members, strict=True)]
        for task in self.tasks_at(step):
            seen, rows, scores = step.partition.column_tasks <= task, [], []
            for half, chosen in enumerate(halves):
                centres = means[1 - half]
                own = centres[list(step.partition.tasks[task])]
                classes = np.count_nonzero(members[1 - half][seen].any(axis=1))
                others = (centres[seen].sum(axis=0) - own) / max(1, classes - 1)
                axes = (own - others) / np.maximum(np.linalg.norm(own - others, axis=1, keepdims=True), 1e-12)
                rows.append(chosen[tasks[chosen] <= task])
                scores.append(features[rows[-1]] @ axes.T - np.einsum("kd,kd->k", others, axes))
            self._add("features", step, task, np.concatenate(scores), np.concatenate(rows))

    def falls(self, features: bool) -> Float64Array:
        """``[T]``: how far the logits of each task fell on its own samples, relative to others; 0 if unknown.

        ``features``: leave out what the logits fell because the features did.
        """
        falls = np.zeros(self.steps)
        for task in range(self.steps - 1):
            before, now = (self._responses.get(("logits", task, last)) for last in (False, True))
            features_before, features_now = (self._responses.get(("features", task, last)) for last in (False, True))
            left = 1.0
            if features and features_before and features_now:
                left = float(np.clip(features_now.value / max(features_before.value, 1e-9), 0, 1))
            if before and now:
                falls[task] = left * now.spread * before.value - now.height
        return falls

    def _add(
        self, kind: Literal["logits", "features"], step: Step, task: int, scores: Float64Array, rows: IntArray
    ) -> None:
        own = np.asarray(step.test.labels)[rows][:, None] == np.asarray(step.partition.tasks[task])
        self._responses[kind, task, step.index == self.steps - 1] = response(scores, own)

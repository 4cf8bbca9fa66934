"""Distances of OOD samples from ID samples in feature space, per step."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from tood.arrays import Float64Array, IntArray
from tood.metrics import nearest_distance
from tood.runs.directory import Run
from tood.runs.steps import Step

__all__ = ["Distances", "Nearest", "distances", "from_logs", "nearest"]

MOST = 2000  # ID samples at the last step, and samples per OOD set, that distances are taken from and to
MOST_LONG = 500  # samples per OOD set on long streams: the cost grows with steps times samples
LONG = 20  # tasks


@dataclass(frozen=True)
class Distances:
    """Geometric mean distance to the nearest ID test sample, per step; the same number of ID samples per class.

    Attributes
    ----------
    ood, known:
        From OOD samples (geometric mean over sets) and from other ID test samples.
    """

    ood: tuple[float, ...]
    known: tuple[float, ...]

    @property
    def ratio(self) -> tuple[float, ...]:
        """Distance of OOD samples relative to that of ID samples, per step; the scale of the features cancels."""
        return tuple(o / i for o, i in zip(self.ood, self.known, strict=True))


class Nearest(NamedTuple):
    """Distances at one step to the nearest of a reference half of the ID test samples."""

    reference: IntArray  # rows of the test data in the reference half
    rows: IntArray  # rows of the test data in the other half
    known: Float64Array  # distances of that other half
    ood_rows: dict[str, IntArray]  # rows of each OOD set
    ood: dict[str, Float64Array]  # and their distances

    def mean_logs(self) -> tuple[float, float]:
        """Mean logarithms of the distances: of OOD samples (mean over sets) and of ID samples."""
        return float(np.mean([log_of(values).mean() for values in self.ood.values()])), float(log_of(self.known).mean())


def log_of(distances: Float64Array) -> Float64Array:
    """Logarithms of distances, some of which may be 0."""
    logs: Float64Array = np.log(np.maximum(distances, 1e-12))
    return logs


def nearest(step: Step, columns: int, steps: int) -> Nearest | None:
    """Distances at one step; None without OOD sets, or if some task has too few test samples.

    Parameters
    ----------
    step:
        A step with features.
    columns, steps:
        Number of classes and of steps of the whole run; they set the number of samples, which is the same at each step.
    """
    if not step.ood:
        return None
    per_class = max(1, MOST // (2 * columns))
    labels, features = np.asarray(step.test.labels), np.asarray(step.test.features)
    order = np.argsort(labels, kind="stable")
    ends = np.searchsorted(labels[order], np.arange(step.partition.columns + 1))
    by_class = [order[start:stop][: 2 * per_class] for start, stop in itertools.pairwise(ends)]
    reference, others = (np.concatenate([rows[half::2] for rows in by_class]) for half in (0, 1))
    if len(np.unique(step.test_tasks()[others])) < len(step.partition):
        return None
    most = MOST_LONG if steps > LONG else MOST
    ood_rows, ood = {}, {}
    for name, outputs in step.ood.items():
        count = len(outputs.logits)
        ood_rows[name] = np.arange(0, count, -(-count // most))
        ood[name] = np.asarray(nearest_distance(np.asarray(outputs.features)[ood_rows[name]], features[reference]))
    known = np.asarray(nearest_distance(features[others], features[reference]))
    return Nearest(reference, others, known, ood_rows, ood)


def distances(run: Run, steps: int) -> Distances | None:
    """Distances at every step; None if a step has no features, no OOD sets or too few samples."""
    columns = run.partition.first(steps)[0].columns
    logs = []
    for index in range(steps):
        step = Step(run, index)
        near = nearest(step, columns, steps) if step.has("features") else None
        if near is None:
            return None
        logs.append(near.mean_logs())
    return from_logs(logs)


def from_logs(logs: Sequence[tuple[float, float]]) -> Distances:
    """Distances from :meth:`Nearest.mean_logs` of each step."""
    ood, known = np.exp(np.array(logs)).T
    return Distances(tuple(ood.tolist()), tuple(known.tolist()))

"""Distances of OOD samples from ID samples in feature space, per step."""

from __future__ import annotations

import itertools
from typing import NamedTuple

import numpy as np

from tood.arrays import Float64Array, IntArray
from tood.metrics import nearest_distance
from tood.outputs.steps import Step

__all__ = ["NearestDistances", "log_of", "nearest"]

MOST = 2000  # ID samples at the last step, and samples per OOD set, that distances are taken from and to
MOST_LONG = 500  # samples per OOD set on long streams: the cost grows with steps times samples
LONG = 20  # tasks


class NearestDistances(NamedTuple):
    """Distances at one step to the nearest of a reference half of the ID test samples."""

    halves: tuple[IntArray, IntArray]  # rows of the test data: the reference half, and the other half
    known: Float64Array  # distances of the other half
    ood_rows: dict[str, IntArray]  # rows of each OOD set
    ood: dict[str, Float64Array]  # and their distances


def log_of(distances: Float64Array) -> Float64Array:
    """Logarithms of distances, some of which may be 0."""
    logs: Float64Array = np.log(np.maximum(distances, 1e-12))
    return logs


def nearest(step: Step, columns: int, steps: int) -> NearestDistances | None:
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
    return NearestDistances((reference, others), known, ood_rows, ood)

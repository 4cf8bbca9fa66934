"""Distances between OOD and ID samples in feature space, step by step."""

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
        """Distance of OOD from ID in units of the distance of ID from itself, per step: free of the features' scale."""
        return tuple(o / i for o, i in zip(self.ood, self.known, strict=True))


class Nearest(NamedTuple):
    """Distances at one step to the reference half of the ID test samples."""

    reference: IntArray  # rows of the test data that distances are taken to
    known: Float64Array  # distances of the other half
    rows: IntArray  # rows of the test data in the other half
    tasks: IntArray  # their tasks
    ood: dict[str, Float64Array]
    ood_rows: dict[str, IntArray]


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

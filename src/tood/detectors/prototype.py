"""Distance to the nearest class prototype, raw and with TOOD's per-task normalisation (paper, "manifold crowding")."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from tood.arrays import Float64Array, FloatArray, IntArray
from tood.detectors.base import Detector, Grid
from tood.detectors.distance import FEATURES_AND_LABELS, Means
from tood.detectors.outputs import FitData, Rows
from tood.detectors.registry import register
from tood.detectors.statistics import Moments
from tood.energy import with_lead
from tood.statistics import least_spread, task_statistics

TOOD_PAPER = (
    "ElAraby, Nashed and Paull, TOOD: Task-Aware Out-of-Distribution Score Calibration for Continual Learners, "
    "CoLLAs 2026"
)


def nearest(features: FloatArray, means: Means) -> Float64Array:
    """``[n]``: the distance of each feature to the nearest mean."""
    own, other = means.squared(features)
    result: Float64Array = np.sqrt(np.maximum(own + other.min(axis=1), 0))
    return result


@register
class Prototype(Detector):
    """Minus the Euclidean distance to the nearest class mean.

    Classes without a fit sample are ignored.
    """

    name = "prototype"
    title = "Prototype"
    needs = FEATURES_AND_LABELS
    citation = TOOD_PAPER

    means_: Float64Array  # [K, D], of the classes seen

    def _fit(self, data: FitData) -> None:
        moments = Moments.of(data, scatter=False)
        self.means_ = moments.class_means[moments.seen]

    def _prepare(self, dtype: np.dtype[Any]) -> Means:
        return Means.of(self.means_)

    def _score(self, rows: Rows, prepared: Means) -> FloatArray:
        return -nearest(rows.features, prepared)


@register
class TOODPrototype(Detector):
    """Nearest-prototype distance, normalised within each task as TOOD normalises energies, scored by its maximum.

    ``D_t(x) = -min_{c in task t} ‖z - μ_c‖``; of each task, median and MAD of the fit samples' own-task distances give
    ``u_t = (D_t - median_t) / MAD_t``; the score is ``max_t u_t``, plus the margin times its lead over the second.
    It is fitted on the fit set, like the distance it normalises. Classes and tasks without a fit sample are ignored.

    Parameters
    ----------
    margin:
        λ ≥ 0, the weight of the gap between the two largest normalised distances.
    """

    name = "tood_prototype"
    title = "TOOD on prototypes"
    needs = FEATURES_AND_LABELS
    citation = TOOD_PAPER
    grid: ClassVar[Grid] = {"margin": (0.0, 0.5)}
    passes = 2

    means_: Float64Array  # [K, D], of the classes seen, task by task
    starts_: IntArray  # [N], the first of each task seen
    median_: Float64Array  # [N]
    mad_: Float64Array  # [N]

    def __init__(self, margin: float = 0.0) -> None:
        self.margin = margin

    def _check(self) -> None:
        self._number("margin", 0, 1e6)

    def _fit(self, data: FitData) -> None:
        task_of = data.tasks(self.name).column_tasks
        moments = Moments.of(data, scatter=False)
        order = np.argsort(task_of, kind="stable")
        order = order[moments.seen[order]]
        tasks, self.starts_ = np.unique(task_of[order], return_index=True)
        self.means_ = moments.class_means[order]
        own: list[Float64Array] = []
        places: list[IntArray] = []
        for rows in data:
            place = np.searchsorted(tasks, task_of[rows.classes])
            for t, means in enumerate(np.split(self.means_, self.starts_[1:])):
                own.append(-nearest(rows.features[place == t], Means.of(means)))
                places.append(np.full(len(own[-1]), t))
        statistics = task_statistics(np.concatenate(own), np.concatenate(places), len(tasks))
        self.median_, floor = statistics["median"], least_spread(statistics["median"])
        flat = statistics["mad"] < floor
        self.mad_ = np.where(flat, floor, statistics["mad"])
        if flat.any():
            self._warn(f"the distances of task {', '.join(map(str, tasks[flat]))} have no spread; it is floored")

    def _prepare(self, dtype: np.dtype[Any]) -> Means:
        return Means.of(self.means_)

    def _score(self, rows: Rows, prepared: Means) -> FloatArray:
        own, other = prepared.squared(rows.features)
        squared = np.minimum.reduceat(other, self.starts_, axis=1) + own[:, None]
        values = (-np.sqrt(np.maximum(squared, 0)) - self.median_) / self.mad_
        return with_lead(values, float(self.margin))

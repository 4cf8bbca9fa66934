"""Bootstrap intervals of Avg AUROC, with the same resampled images at every step and for every detector."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from tood.arrays import Float64Array, FloatArray, IntArray
from tood.audit.bootstrap import draw_counts

__all__ = ["Interval", "Resampling"]


class Interval(NamedTuple):
    """95 % intervals in [0, 1] of the average AUROC, and of its difference from energy on the same resamples."""

    low: float
    high: float
    gain_low: float
    gain_high: float


class Resampling:
    """Bootstrap of the test samples of each task and of the samples of each OOD set.

    Samples are weighted by how often they were drawn, so scores are sorted only once. The same samples are drawn at
    every step and for every detector, so differences are paired. Networks are not trained again: the intervals do not
    include the variation between training seeds.

    Parameters
    ----------
    groups:
        The group, ``"near"`` or ``"far"``, of each OOD set; groups have equal weights.
    resamples:
        R, the number of resamples.
    """

    def __init__(self, groups: Mapping[str, str], resamples: int = 200) -> None:
        self.groups = groups
        self.resamples = resamples
        self._counts: dict[tuple[int, int, int], npt.NDArray[Any]] = {}
        self._by_step: dict[str, list[Float64Array]] = {}  # [R] per step

    def add(self, detector: str, test: FloatArray, tasks: IntArray, ood: Mapping[str, FloatArray]) -> None:
        """Add the scores of one step."""
        members = [np.flatnonzero(tasks == task) for task in range(int(tasks.max()) + 1)]
        means: dict[str, list[Float64Array]] = {}
        for place, (name, values) in enumerate(ood.items()):
            order = np.argsort(values, kind="stable")
            ordered, weights = values[order], self._drawn(1, place, len(values))[:, order]
            below = np.zeros((self.resamples, len(values) + 1))
            np.cumsum(weights, axis=1, out=below[:, 1:])
            of_tasks = []
            for task, own in enumerate(members):
                left, right = (np.searchsorted(ordered, test[own], side) for side in ("left", "right"))
                share = (below[:, left] + below[:, right]) / (2 * len(values))
                of_tasks.append(np.einsum("rn,rn->r", share, self._drawn(0, task, len(own))) / len(own))
            means.setdefault(self.groups[name], []).append(np.mean(of_tasks, axis=0))
        balanced = np.mean([np.mean(sets, axis=0) for sets in means.values()], axis=0)
        self._by_step.setdefault(detector, []).append(balanced)

    def interval(self, detector: str) -> Interval:
        """Intervals of a detector, over the steps added."""
        average, plain = (np.mean(self._by_step[name], axis=0) for name in (detector, "energy"))
        bounds = (np.quantile(values, q) for values in (average, average - plain) for q in (0.025, 0.975))
        return Interval(*map(float, bounds))

    def _drawn(self, kind: int, place: int, size: int) -> npt.NDArray[Any]:
        """``[R, size]``: the number of times each sample was drawn."""
        key = (kind, place, size)
        if key not in self._counts:
            counts = draw_counts(np.random.default_rng(key), size, self.resamples)
            self._counts[key] = counts.astype(np.float32)
        return self._counts[key]

"""Paired bootstrap over samples, for statistics that are weighted sums of AUROCs and means.

Every statistic is expanded to first order in the weights of the samples (DeLong, DeLong and Clarke-Pearson, 1988, for
the AUROC). A resample then costs one sum, whatever the number of tasks, steps and OOD sets behind the statistic. A
sample has the same weight at every step and for every detector, so differences are paired.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

import numpy as np

from tood.arrays import Float64Array, FloatArray, IntArray

RESAMPLES = 1000

Drawn: TypeAlias = Float64Array  # [1 + R]: a value, then the same value in R resamples


@dataclass(frozen=True)
class WithInterval:
    """A value with its 95 % interval."""

    value: float
    low: float
    high: float


def interval(drawn: Drawn) -> WithInterval:
    """The value with the 2.5 % and 97.5 % quantiles of its resamples."""
    low, high = np.quantile(drawn[1:], (0.025, 0.975))
    return WithInterval(float(drawn[0]), float(low), float(high))


class TaskScores(NamedTuple):
    """``[n]`` each: scores of ID samples, their tasks, and their indices in :class:`Samples`."""

    scores: FloatArray
    tasks: IntArray
    indices: IntArray


def weight_below(scores: FloatArray, others: FloatArray, weights: Float64Array) -> Float64Array:
    """``[n]``: the weight of the other scores below each score, ties counted half."""
    order = np.argsort(others, kind="stable")
    cumulative, ordered = np.append(0.0, weights[order].cumsum()), others[order]
    below, not_above = (cumulative[np.searchsorted(ordered, scores, side)] for side in ("left", "right"))
    return (below + not_above) / 2


def auroc_by_task(id_scores: FloatArray, tasks: IntArray, ood_scores: FloatArray) -> Float64Array:
    """``[tasks]``: AUROC of each task; every task must have samples."""
    below = weight_below(id_scores, ood_scores, np.ones(len(ood_scores))) / len(ood_scores)
    return np.bincount(tasks, below) / np.bincount(tasks)


def draw_counts(rng: np.random.Generator, size: int, resamples: int) -> IntArray:
    """``[resamples, size]``: how often each of ``size`` samples is drawn, with replacement, in each resample."""
    chosen = rng.integers(size, size=(resamples, size)) + size * np.arange(resamples)[:, None]
    return np.bincount(chosen.ravel(), minlength=resamples * size).reshape(resamples, size)


class Samples:
    """Samples in blocks, and statistics of them by name.

    Samples belong to blocks (the test samples of one task, the samples of one OOD set) and are resampled within them.
    A statistic knows the influence of each sample: how much it changes, to first order, if the sample counts once more.
    """

    def __init__(self) -> None:
        self._blocks: dict[Hashable, IntArray] = {}
        self._size = 0
        self._values: dict[Hashable, float] = {}
        self._influences: dict[Hashable, Float64Array] = {}

    def indices(self, block: Hashable, size: int) -> IntArray:
        """Indices of the samples of a block; a new block gets new ones."""
        if block not in self._blocks:
            self._blocks[block] = self._size + np.arange(size)
            self._size += size
        return self._blocks[block]

    def add_mean(self, name: Hashable, weight: float, values: FloatArray, indices: IntArray) -> None:
        """Add ``weight`` times the mean of ``values`` to a statistic."""
        mean = float(np.mean(values))
        self._add(name, weight * mean, (indices, weight * (values - mean) / len(values)))

    def add_auroc(
        self, name: Hashable, weights: Float64Array, known: TaskScores, ood_scores: FloatArray, ood_indices: IntArray
    ) -> None:
        """Add the AUROCs of all tasks, each times its entry in ``weights`` ``[tasks]``, to a statistic."""
        scores, tasks, indices = known
        counts = np.maximum(np.bincount(tasks, minlength=len(weights)), 1)
        above = weight_below(scores, ood_scores, np.ones(len(ood_scores))) / len(ood_scores)
        aurocs = np.bincount(tasks, above, len(weights)) / counts
        sample_weights = (weights / counts)[tasks]
        missed = weight_below(ood_scores, scores, sample_weights)  # weight of the ID samples below each OOD sample
        of_known = (indices, sample_weights * (above - aurocs[tasks]))
        of_ood = (ood_indices, (missed.mean() - missed) / len(ood_scores))
        self._add(name, float(weights @ aurocs), of_known, of_ood)

    def drawn(self) -> dict[Hashable, Drawn]:
        """Every statistic with its resamples, which are the same for all."""
        influences = np.zeros((self._size, len(self._values)))
        for column, influence in enumerate(self._influences.values()):
            influences[: len(influence), column] = influence
        drawn = np.tile([*self._values.values()], (1 + RESAMPLES, 1))
        for number, indices in enumerate(self._blocks.values()):
            counts = draw_counts(np.random.default_rng((number, len(indices))), len(indices), RESAMPLES)
            drawn[1:] += (counts - 1.0) @ influences[indices]
        return dict(zip(self._values, drawn.T, strict=True))

    def _add(self, name: Hashable, value: float, *influences: tuple[IntArray, Float64Array]) -> None:
        """Add to a statistic and to the influences on it; over a block, influences sum to 0."""
        total = self._influences.get(name, np.empty(0))
        if len(total) < self._size:
            total = np.append(total, np.zeros(self._size - len(total)))
        for indices, influence in influences:
            total[indices] += influence
        self._values[name] = self._values.get(name, 0.0) + value
        self._influences[name] = total

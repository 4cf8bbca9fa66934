"""Paired bootstrap over samples, for statistics that are weighted sums of AUROCs and means.

Every statistic is expanded to first order in the weights of the samples (DeLong, DeLong and Clarke-Pearson, 1988, for
the AUROC). A resample then costs one sum, whatever the number of tasks, steps and OOD sets behind the statistic. An
image has the same weight at every step and for every detector, so differences are paired.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass

import numpy as np

from tood.arrays import Float64Array, FloatArray, IntArray

__all__ = ["Estimate", "Statistics", "auroc_by_task", "draw_counts", "estimate", "shares_below"]

RESAMPLES = 1000


@dataclass(frozen=True)
class Estimate:
    """A value with its 95 % interval."""

    value: float
    low: float
    high: float


def estimate(value: float, draws: Float64Array) -> Estimate:
    """The value with the interval between the 2.5 % and 97.5 % quantiles of its resamples."""
    low, high = np.quantile(draws, (0.025, 0.975))
    return Estimate(float(value), float(low), float(high))


def places(scores: FloatArray, ordered: FloatArray) -> tuple[IntArray, IntArray]:
    """``[n]`` each: the number of ordered scores below each score, and of those not above it."""
    below = np.searchsorted(ordered, scores)
    if (ordered[np.minimum(below, len(ordered) - 1)] != scores).all():  # no ties: seldom are there any
        return below, below
    return below, np.searchsorted(ordered, scores, "right")


def shares_below(id_scores: FloatArray, ood_scores: FloatArray) -> Float64Array:
    """``[n]``: the share of OOD scores below each ID score, ties counted half; its mean is the AUROC."""
    below, not_above = places(id_scores, np.sort(ood_scores))
    shares: Float64Array = (below + not_above) / (2 * len(ood_scores))
    return shares


def auroc_by_task(id_scores: FloatArray, tasks: IntArray, ood_scores: FloatArray) -> Float64Array:
    """``[tasks]``: AUROC of each task; every task must have samples."""
    aurocs: Float64Array = np.bincount(tasks, shares_below(id_scores, ood_scores)) / np.bincount(tasks)
    return aurocs


def draw_counts(rng: np.random.Generator, size: int, resamples: int) -> IntArray:
    """``[resamples, size]``: how often each of ``size`` samples is drawn, with replacement, in each resample."""
    chosen = rng.integers(size, size=(resamples, size)) + size * np.arange(resamples)[:, None]
    return np.bincount(chosen.ravel(), minlength=resamples * size).reshape(resamples, size)


class Statistics:
    """Statistics by name, each with the influence of every sample on it.

    The influence of a sample is how much the statistic changes, to first order, if the sample counts once more.
    Samples belong to blocks (the test samples of one task, the samples of one OOD set) and are resampled within them.
    A sample has one index, at every step.
    """

    def __init__(self) -> None:
        self.values: dict[Hashable, float] = {}
        self._blocks: dict[Hashable, IntArray] = {}
        self._samples = 0
        self._influences: dict[Hashable, Float64Array] = {}

    def indices(self, block: Hashable, size: int) -> IntArray:
        """Indices of the samples of a block; a new block gets new ones."""
        if block not in self._blocks:
            self._blocks[block] = self._samples + np.arange(size)
            self._samples += size
        return self._blocks[block]

    def add_mean(self, name: Hashable, weight: float, values: FloatArray, indices: IntArray) -> None:
        """Add ``weight`` times the mean of ``values`` to a statistic."""
        mean = float(np.mean(values))
        self.values[name] = self.values.get(name, 0.0) + weight * mean
        self.add_influence(name, indices, weight * (values - mean) / len(values))

    def add_auroc(
        self,
        name: Hashable,
        weights: Float64Array,
        id_scores: FloatArray,
        tasks: IntArray,
        id_indices: IntArray,
        ood_scores: FloatArray,
        ood_indices: IntArray,
    ) -> None:
        """Add the AUROCs of all tasks, each times its weight, to a statistic.

        Parameters
        ----------
        name:
            The statistic.
        weights:
            ``[tasks]``, the weight of each task's AUROC; it may be negative.
        id_scores, tasks, id_indices:
            ``[n]``, scores of ID samples, their tasks and indices.
        ood_scores, ood_indices:
            ``[m]``, scores of OOD samples and their indices.
        """
        ordered = np.sort(ood_scores)
        below, not_above = places(id_scores, ordered)
        above = (below + not_above) / (2 * len(ordered))
        counts = np.bincount(tasks, minlength=len(weights))
        aurocs: Float64Array = np.bincount(tasks, above, len(weights)) / np.maximum(counts, 1)
        sample_weights = weights[tasks] / counts[tasks]
        # ID samples below an OOD sample of rank k have at most k OOD samples not above them; not higher: below them.
        lower, not_higher = (
            np.bincount(place, sample_weights, len(ordered) + 1).cumsum() for place in (not_above, below)
        )
        rank = np.searchsorted(ordered, ood_scores)
        beaten = lower[-1] - (lower[rank] + not_higher[rank]) / 2  # weight of the ID samples above each OOD sample
        self.values[name] = self.values.get(name, 0.0) + float(weights @ aurocs)
        self.add_influence(name, id_indices, sample_weights * (above - aurocs[tasks]))
        self.add_influence(name, ood_indices, (beaten - beaten.mean()) / len(ood_scores))

    def add_influence(self, name: Hashable, indices: IntArray, influence: Float64Array) -> None:
        """Add to the influence of some samples on a statistic; over a block it sums to 0."""
        total = self._influences.get(name, np.empty(0))
        if len(total) < self._samples:
            total = np.concatenate([total, np.zeros(self._samples - len(total))])
        total[indices] += influence
        self._influences[name] = total

    def draws(self, names: Iterable[Hashable], resamples: int = RESAMPLES) -> dict[Hashable, Float64Array]:
        """``[resamples]`` values of each statistic, the same resamples for all."""
        names = list(names)
        influences = np.zeros((self._samples, len(names)))
        for column, name in enumerate(names):
            influence = self._influences[name]
            influences[: len(influence), column] = influence
        draws = np.tile([self.values[name] for name in names], (resamples, 1))
        for number, indices in enumerate(self._blocks.values()):
            influence = influences[indices]
            if influence.any():
                counts = draw_counts(np.random.default_rng((number, len(indices))), len(indices), resamples)
                draws += (counts - 1.0) @ influence
        return {name: draws[:, column] for column, name in enumerate(names)}

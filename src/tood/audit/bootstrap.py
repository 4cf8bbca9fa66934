"""Paired bootstrap over samples of statistics that are weighted sums of AUROCs and means.

Every statistic is expanded to first order in the weights of the samples (DeLong, DeLong and Clarke-Pearson, 1988, for
the AUROC): a resample then costs one sum, whatever the number of tasks, steps and OOD sets behind the statistic. An
image keeps its weight at every step and for every detector, so differences are paired.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass

import numpy as np

from tood.arrays import Float64Array, FloatArray, IntArray

__all__ = ["Estimate", "Statistics", "estimate", "shares_below"]

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


def shares_below(known: FloatArray, unknown: FloatArray) -> Float64Array:
    """``[n]``: the share of OOD scores below each ID score, ties counted half; its mean is the AUROC."""
    ordered = np.sort(unknown)
    left, right = (np.searchsorted(ordered, known, side) for side in ("left", "right"))
    shares: Float64Array = (left + right) / (2 * len(unknown))
    return shares


class Statistics:
    """Values by name, and each sample's part in them.

    Samples are resampled within blocks: the test samples of one task, the samples of one OOD set. A block that looks
    the same at two steps holds the same images.
    """

    def __init__(self) -> None:
        self.values: dict[Hashable, float] = {}
        self._starts: dict[Hashable, int] = {}
        self._sizes: list[int] = []
        self._parts: dict[Hashable, Float64Array] = {}

    def places(self, block: Hashable, size: int) -> IntArray:
        """The places of a block's samples; a block that is new gets places of its own."""
        if block not in self._starts:
            self._starts[block] = sum(self._sizes)
            self._sizes.append(size)
        return self._starts[block] + np.arange(size)

    def add_mean(self, name: Hashable, weight: float, values: FloatArray, places: IntArray) -> None:
        """Add ``weight`` times the mean of ``values`` to a statistic."""
        mean = float(np.mean(values))
        self.values[name] = self.values.get(name, 0.0) + weight * mean
        self.add_part(name, places, weight * (values - mean) / len(values))

    def add_auroc(
        self,
        name: Hashable,
        weights: Float64Array,
        known: FloatArray,
        tasks: IntArray,
        known_places: IntArray,
        unknown: FloatArray,
        unknown_places: IntArray,
    ) -> Float64Array:
        """Add the AUROCs of all tasks, each times its weight, to a statistic.

        Parameters
        ----------
        name:
            The statistic.
        weights:
            ``[tasks]``, the weight of each task's AUROC; it may be negative.
        known, tasks, known_places:
            ``[n]``, scores of ID samples, their tasks and places.
        unknown, unknown_places:
            ``[m]``, scores of OOD samples and their places.

        Returns
        -------
        ``[tasks]``: the AUROC of each task.
        """
        above = shares_below(known, unknown)
        counts = np.bincount(tasks, minlength=len(weights))
        values: Float64Array = np.bincount(tasks, above, len(weights)) / np.maximum(counts, 1)
        share = weights[tasks] / counts[tasks]
        order = np.argsort(known)
        below = np.concatenate([[0.0], np.cumsum(share[order])])
        left, right = (np.searchsorted(known[order], unknown, side) for side in ("left", "right"))
        beaten = below[-1] - (below[left] + below[right]) / 2
        self.values[name] = self.values.get(name, 0.0) + float(weights @ values)
        self.add_part(name, known_places, share * (above - values[tasks]))
        self.add_part(name, unknown_places, (beaten - beaten.mean()) / len(unknown))
        return values

    def add_part(self, name: Hashable, places: IntArray, parts: Float64Array) -> None:
        """Add how much a statistic changes when each sample counts once more; parts of a block sum to 0."""
        total, kept = sum(self._sizes), self._parts.get(name, np.empty(0))
        if len(kept) < total:
            kept = np.concatenate([kept, np.zeros(total - len(kept))])
        kept[places] += parts
        self._parts[name] = kept

    def draws(self, names: Iterable[Hashable], resamples: int = RESAMPLES) -> dict[Hashable, Float64Array]:
        """``[resamples]`` values of each statistic, the same resamples for all."""
        names = list(names)
        parts = np.zeros((sum(self._sizes), len(names)))
        for column, name in enumerate(names):
            own = self._parts[name]
            parts[: len(own), column] = own
        found = np.tile([self.values[name] for name in names], (resamples, 1))
        for number, (start, size) in enumerate(zip(self._starts.values(), self._sizes, strict=True)):
            own = parts[start : start + size]
            if own.any():
                rng = np.random.default_rng((number, size))
                chosen = rng.integers(size, size=(resamples, size)) + size * np.arange(resamples)[:, None]
                counts = np.bincount(chosen.ravel(), minlength=resamples * size).reshape(resamples, size)
                found += (counts - 1.0) @ own
        return {name: found[:, column] for column, name in enumerate(names)}

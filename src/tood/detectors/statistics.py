"""Sufficient statistics in float64: sums over chunks, so the number and order of chunks do not matter."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from tood.arrays import Float64Array, FloatArray, IntArray, finite
from tood.detectors.outputs import FitData

FEW = 256  # rows summed in their own precision
SAMPLE = 1 << 14  # numbers drawn to find a percentile's surroundings
SLACK = 384  # ranks in the sample: at least six standard deviations
MOMENT_BLOCK = 1 << 20  # centred elements at once: 8 MiB of float64, which the allocator reuses


def class_sums(values: FloatArray, classes: IntArray, count: int) -> Float64Array:
    """``[count, D]``: the sum of the rows ``[n, D]`` of each class."""
    sums = np.zeros((count, values.shape[1]))
    order = np.argsort(classes, kind="stable")
    _add_runs(values if count == 1 else values[order], classes[order], sums)
    return sums


def _add_runs(values: FloatArray, classes: IntArray, sums: Float64Array) -> None:
    """Add rows ``[n, D]``, ordered by class, to the sums of their classes ``[count, D]``."""
    starts = np.flatnonzero(np.diff(classes, prepend=-1)).tolist()
    for start, end in pairwise([*starts, len(classes)]):  # faster than np.add.reduceat
        sums[classes[start]] += np.add.reduce(values[start:end], axis=0, dtype=np.float64)


def mean_feature(data: FitData) -> Float64Array:
    """``[D]``: the mean of all fit features."""
    total, count = np.zeros(()), 0
    for rows in data.blocks(checked=False):
        with np.errstate(over="ignore", invalid="ignore"):
            part = column_sums(rows.features)
        if not np.isfinite(part).all():  # NaN or infinity, or a sum that overflows single precision
            part = finite(rows.features, "features").sum(axis=0, dtype=np.float64)
        total = total + part
        count += len(rows.features)
    return total / count


def column_sums(values: FloatArray) -> Float64Array:
    """``[D]``: the sum of rows ``[n, D]``, in their own precision over a few rows each, then in float64.

    A product with ones reads memory once at full speed, several times faster than a sum that converts each number.
    """
    ones, whole = np.ones((1, FEW), dtype=values.dtype), len(values) - len(values) % FEW
    few = ones @ values[:whole].reshape(-1, FEW, values.shape[1])
    rest = ones[0, : len(values) - whole] @ values[whole:]
    result: Float64Array = few.sum(axis=(0, 1), dtype=np.float64) + rest
    return result


class CorrectMeans(NamedTuple):
    """Mean logits or features per class."""

    means: Float64Array  # [C, ·]
    seen: npt.NDArray[np.bool_]  # [C], classes with samples
    any_correct: npt.NDArray[np.bool_]  # [C], classes with a correctly classified sample


def correct_class_means(data: FitData, part: str) -> CorrectMeans:
    """Means of a part of the outputs over the correctly classified samples of each class.

    A class without a correctly classified sample has the mean of all its samples, one without samples the mean of all:
    after forgetting, and before a class is learned, both are normal.
    """
    sums, counts = np.zeros(()), np.zeros(())  # [2, C, ·], [2, C]: correct, all
    for rows in data:
        values: FloatArray = getattr(rows, part)
        right = rows.logits.argmax(axis=1) == rows.classes
        parts = (values[right], rows.classes[right]), (values, rows.classes)
        sums = sums + np.stack([class_sums(x, c, data.columns) for x, c in parts])
        counts = counts + np.stack([np.bincount(c, minlength=data.columns) for _, c in parts])
    correct, seen = counts > 0
    means = sums / np.maximum(counts, 1)[..., None]
    common = sums[1].sum(axis=0) / counts[1].sum()
    chosen = np.where(correct[:, None], means[0], np.where(seen[:, None], means[1], common))
    return CorrectMeans(chosen, seen, correct)


class Moments:
    """Counts, sums and, if asked for, second moments of features, by class, about a fixed origin.

    The origin is the mean of the first rows. It cancels from every result; without it, a large common mean would cost
    precision in the spread.

    Parameters
    ----------
    origin:
        ``[D]``, any point near the features.
    classes:
        Number of classes; with 1, labels are not read.
    scatter:
        Whether to compute second moments. Products are float64: float32 would lose the smallest eigenvalues.
    """

    def __init__(self, origin: FloatArray, classes: int, scatter: bool) -> None:
        self.origin: Float64Array = origin.astype(np.float64)
        self.counts = np.zeros(classes)
        self._sums = np.zeros((classes, len(origin)))
        self._scatter = np.zeros((len(origin), len(origin)) if scatter else (0, 0))

    @classmethod
    def of(cls, data: FitData, scatter: bool = True, by_class: bool = True) -> Moments:
        """Moments of all fit features, by label or all together."""
        moments: Moments | None = None
        for rows in data:
            if moments is None:
                origin = rows.features.mean(axis=0, dtype=np.float64)
                moments = cls(origin, data.columns if by_class else 1, scatter)
            moments.add(rows.features, rows.classes if by_class else np.zeros(len(rows.features), dtype=np.int64))
        assert moments is not None  # no rows are an error of their own
        return moments

    def add(self, features: FloatArray, labels: IntArray) -> None:
        """Add rows ``[n, D]`` and their classes ``[n]``."""
        self.counts += np.bincount(labels, minlength=len(self.counts))
        order = np.argsort(labels, kind="stable") if len(self.counts) > 1 else None
        step = max(256, MOMENT_BLOCK // max(1, features.shape[1]))
        buffer = np.empty_like(features[:step], dtype=np.float64)  # new memory for each block would cost more
        gathered = np.empty_like(features[:step])
        for start in range(0, len(features), step):
            block = features[start : start + step]
            centred = buffer[: len(block)]
            if order is not None:
                rows = order[start : start + step]
                block = features.take(rows, axis=0, out=gathered[: len(rows)], mode="clip")  # "raise" copies once more
            np.subtract(block, self.origin, out=centred)
            if order is None:
                self._sums += column_sums(centred)
            else:
                _add_runs(centred, labels[rows], self._sums)
            if self._scatter.size:
                self._scatter += centred.T @ centred

    @property
    def total(self) -> float:
        """The number of rows."""
        return float(self.counts.sum())

    @property
    def seen(self) -> npt.NDArray[np.bool_]:
        """``[C]``: which classes have rows."""
        return self.counts > 0

    @property
    def mean(self) -> Float64Array:
        """``[D]``: the mean of all rows."""
        result: Float64Array = self.origin + self._sums.sum(axis=0) / self.total
        return result

    @property
    def class_means(self) -> Float64Array:
        """``[C, D]``: the mean of each class; the origin for a class without rows."""
        result: Float64Array = self.origin + self._sums / np.maximum(self.counts, 1)[:, None]
        return result

    def second_moment(self, about: Float64Array) -> Float64Array:
        """``[D, D]``: the mean of ``(z - about)(z - about)ᵀ`` over all rows."""
        shift, mean = about - self.origin, self._sums.sum(axis=0) / self.total
        cross = np.outer(mean, shift)
        result: Float64Array = self._scatter / self.total - cross - cross.T + np.outer(shift, shift)
        return result

    def within_covariance(self) -> Float64Array:
        """``[D, D]``: the covariance about the class means, divided by the number of rows."""
        scaled = self._sums / np.sqrt(np.maximum(self.counts, 1))[:, None]
        result: Float64Array = (self._scatter - scaled.T @ scaled) / self.total
        return result


def percentiles(blocks: Iterable[FloatArray], wanted: Sequence[float]) -> list[float]:
    """Exact percentiles (0 to 100, linear interpolation) of all numbers in the blocks, which are not copied."""
    numbers = [block.reshape(-1) for block in blocks]
    count = sum(map(len, numbers))
    rng = np.random.default_rng(0)  # the result does not depend on the sample
    drawn = [block[rng.integers(len(block), size=SAMPLE * len(block) // count)] for block in numbers]
    sample = np.sort(np.concatenate(drawn))
    result = []
    for percentile in wanted:
        position = (count - 1) * (percentile / 100)
        first = int(position)
        second = min(first + 1, count - 1)
        below, near = _around(numbers, sample, position / count)
        if not below <= first <= second < below + len(near):
            below, near = 0, np.concatenate(numbers)
        near.partition((first - below, second - below))
        low, high = near[first - below], near[second - below]
        gap, share = float(high - low), position - first
        result.append(float(low) + gap * share if share < 0.5 else float(high) - gap * (1 - share))
    return result


def _around(numbers: list[FloatArray], sample: FloatArray, quantile: float) -> tuple[int, FloatArray]:
    """The numbers that a sorted sample puts around a quantile, all but certainly, and how many are below these."""
    middle = int(quantile * len(sample))
    low = sample[middle - SLACK] if middle >= SLACK else -np.inf
    high = sample[middle + SLACK] if middle + SLACK < len(sample) else np.inf
    below, near = 0, []
    for block in numbers:
        less = block < low
        below += int(np.count_nonzero(less))
        near.append(block[less ^ (block <= high)])
    return below, np.concatenate(near)

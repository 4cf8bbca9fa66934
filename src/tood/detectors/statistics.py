"""Functions of rows (softmax, norms, unit length), and statistics of fit data as sums in float64.

The result of a row never depends on the rows beside it; the number and order of chunks of fit data do not matter.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from operator import attrgetter
from typing import Any

import numpy as np
import numpy.typing as npt

from tood.arrays import Float64Array, FloatArray, IntArray
from tood.detectors.rows import FitData, Rows
from tood.energy import exponentials


def softmax(x: FloatArray) -> FloatArray:
    """``[n, C]``: probabilities of each row."""
    values, total, _ = exponentials(x)
    values /= total[:, None]
    return values


def norms(x: FloatArray) -> FloatArray:
    """``[n, D]`` to ``[n]``: Euclidean lengths."""
    return np.sqrt(np.einsum("nd,nd->n", x, x))


def unit(x: FloatArray) -> FloatArray:
    """Each row divided by its length; a zero row has no direction and stays zero."""
    with np.errstate(over="ignore"):
        length = norms(x)
    extreme = ~((length > np.sqrt(np.finfo(x.dtype).tiny)) & (length < np.inf))
    result: FloatArray = x / np.where(extreme, 1, length)[:, None]
    if extreme.any():  # the squares of these entries are too large or too small for the precision
        rows = x[extreme]
        largest = np.abs(rows).max(axis=1, initial=0)
        rows = rows / np.where(largest > 0, largest, 1)[:, None]
        result[extreme] = rows / np.where(largest > 0, norms(rows), 1)[:, None]
    return result


def ratio(above: FloatArray, below: FloatArray, otherwise: float) -> FloatArray:
    """``above / below``; ``otherwise`` if ``below`` is zero."""
    zero = below == 0
    return np.where(zero, above.dtype.type(otherwise), above / np.where(zero, below.dtype.type(1), below))


def own_columns(x: npt.NDArray[Any], columns: IntArray) -> npt.NDArray[Any]:
    """``x[i, columns[i]]`` of each row."""
    return x[np.arange(len(x)), columns]


def class_sums(values: FloatArray, classes: IntArray, count: int) -> Float64Array:
    """``[count, D]``: the sum of the rows ``[n, D]`` of each class."""
    sums = np.zeros((count, values.shape[1]))
    order = np.argsort(classes, kind="stable")
    values, classes = values[order], classes[order]
    starts = np.flatnonzero(np.diff(classes, prepend=-1)).tolist()
    for start, end in pairwise([*starts, len(classes)]):  # faster than np.add.reduceat
        sums[classes[start]] = values[start:end].sum(axis=0, dtype=np.float64)
    return sums


def mean_of(data: FitData, part: Callable[[Rows], FloatArray] = attrgetter("features")) -> Float64Array:
    """``[D]``: the mean over all fit samples of a part of their outputs."""
    total, count = np.zeros(()), 0
    for rows in data:
        total = total + column_sums(part(rows))
        count += len(rows.logits)
    return total / count


def class_means(
    data: FitData, part: Callable[[Rows], tuple[FloatArray, IntArray]]
) -> tuple[Float64Array, Float64Array]:
    """``[C, ·]`` and ``[C]``: mean and number of a part of the outputs by class; the mean of all if a class has none.

    ``part`` gives, for some rows, the values ``[n, ·]`` and the class ``[n]`` of each.
    """
    sums, counts = np.zeros(()), np.zeros(())
    for rows in data:
        values, classes = part(rows)
        sums = sums + class_sums(values, classes, data.columns)
        counts = counts + np.bincount(classes, minlength=data.columns)
    common = sums.sum(axis=0) / max(counts.sum(), 1)
    return np.where(counts[:, None] > 0, sums / np.maximum(counts, 1)[:, None], common), counts


def column_sums(values: FloatArray) -> Float64Array:
    """``[D]``: the sum of rows ``[n, D]``, in their own precision over 256 rows at a time, then in float64.

    A product with ones is five times as fast as a float64 sum (``benchmarks/detectors.py``: fdbd and nci).
    """
    whole = len(values) - len(values) % 256
    ones = np.ones((1, 256), dtype=values.dtype)
    blocks = ones @ values[:whole].reshape(-1, 256, values.shape[1])
    return blocks.sum(axis=(0, 1), dtype=np.float64) + values[whole:].sum(axis=0, dtype=np.float64)


def correct_class_means(data: FitData, part: str) -> tuple[Float64Array, Float64Array, Float64Array]:
    """Means of a part of the outputs over the correctly classified samples of each class; numbers of samples, of those.

    A class without a correctly classified sample has the mean of all its samples, one without samples the mean of all:
    after forgetting, and before a class is learned, both are normal.
    """

    def right(rows: Rows) -> tuple[FloatArray, IntArray]:
        correct = rows.logits.argmax(axis=1) == rows.classes
        return getattr(rows, part)[correct], rows.classes[correct]

    every, counts = class_means(data, lambda rows: (getattr(rows, part), rows.classes))
    means, correct = class_means(data, right)
    return np.where(correct[:, None] > 0, means, every), counts, correct


class Moments:
    """Counts and sums of features by class, and their second moments, about a fixed origin.

    The origin is the mean of the first rows. It cancels from every result; without it, a large common mean would cost
    precision in the spread.

    Parameters
    ----------
    origin:
        ``[D]``, any point near the features.
    classes:
        Number of classes.
    """

    def __init__(self, origin: FloatArray, classes: int) -> None:
        self.origin: Float64Array = origin.astype(np.float64)
        self.counts = np.zeros(classes)
        self._sums = np.zeros((classes, len(origin)))
        self._scatter = np.zeros((len(origin), len(origin)))  # float32 would lose the smallest eigenvalues

    @classmethod
    def of(cls, data: FitData, part: Callable[[Rows], FloatArray] = attrgetter("features")) -> Moments:
        """Moments of all fit features, or another part of the outputs."""
        moments: Moments | None = None
        for rows in data:
            values = part(rows)
            if moments is None:
                moments = cls(values.mean(axis=0, dtype=np.float64), data.columns)
            moments._add(values, rows.classes)
        assert moments is not None  # no rows are an error of their own
        return moments

    def _add(self, values: FloatArray, classes: IntArray) -> None:
        self.counts += np.bincount(classes, minlength=len(self.counts))
        centred = values - self.origin
        self._sums += class_sums(centred, classes, len(self.counts))
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
        return self.origin + self._sums.sum(axis=0) / self.total

    @property
    def class_means(self) -> Float64Array:
        """``[C, D]``: the mean of each class; the origin for a class without rows."""
        return self.origin + self._sums / np.maximum(self.counts, 1)[:, None]

    def second_moment(self, about: Float64Array) -> Float64Array:
        """``[D, D]``: the mean of ``(z - about)(z - about)ᵀ`` over all rows."""
        shift, mean = about - self.origin, self._sums.sum(axis=0) / self.total
        cross = np.outer(mean, shift)
        return self._scatter / self.total - cross - cross.T + np.outer(shift, shift)

    def within_covariance(self) -> Float64Array:
        """``[D, D]``: the covariance about the class means, divided by the number of rows."""
        scaled = self._sums / np.sqrt(np.maximum(self.counts, 1))[:, None]
        return (self._scatter - scaled.T @ scaled) / self.total


def percentiles(data: FitData, wanted: Sequence[float]) -> list[float]:
    """Percentiles (0 to 100, linear interpolation) of all features of all fit samples."""
    numbers = np.concatenate([rows.features.reshape(-1) for rows in data])
    return [float(value) for value in np.percentile(numbers, wanted, overwrite_input=True)]

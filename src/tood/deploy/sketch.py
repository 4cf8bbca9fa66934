"""Quantile sketch: the distribution of a stream of numbers, exact or in bounded memory with a known rank error.

``LiveTOOD(capacity=…)`` and the score quantiles of ``tood score`` use it to bound their memory, as the documentation
promises (``benchmarks/score_stream.py`` measures it).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from tood.errors import ToodError
from tood.statistics import NORMAL_CONSISTENCY

__all__ = ["Sketch", "joined_moments", "moments"]

Floats = npt.NDArray[np.float64]


class Sketch:
    """Count, mean, standard deviation, median and MAD of numbers seen one batch at a time.

    Without ``capacity`` every number is kept, sorted, so that nothing depends on the order in which they came. With it,
    a level that holds more than ``2 * capacity`` numbers passes every other one on to the next level, where each stands
    for twice as many (Munro and Paterson, "Selection and sorting with limited storage", 1980). Passing on numbers that
    stand for w each moves the rank of any value by at most w, up or down as we choose; :attr:`rank_error` adds this up
    and never exceeds ``(1 + log2(n / capacity)) / (4 * capacity)``: 0.5 % for 10⁹ numbers and capacity 1,000.

    Parameters
    ----------
    capacity:
        Numbers a level keeps, 2 or more; at most twice as many are held on each of about ``log2(n / capacity)`` levels.

    Examples
    --------
    >>> sketch = Sketch(capacity=100)
    >>> sketch.add(np.arange(10_000.0))
    >>> abs(sketch.median() - 5_000) <= 10_000 * sketch.rank_error, sketch.held <= 200 * len(sketch.levels)
    (True, True)
    """

    def __init__(self, capacity: int | None = None) -> None:
        if capacity is not None and capacity < 2:
            raise ToodError(f"capacity: expected 2 or more, or None to keep everything, found {capacity}")
        self.capacity = capacity
        self.levels: list[Floats] = [np.empty(0)]  # level h: sorted numbers that stand for 2**h each
        self._moments: Floats = np.zeros(3)  # as moments() gives them
        self._moved = [0.0, 0.0]  # how far a rank can have been moved up, and down

    @property
    def count(self) -> int:
        """The number of numbers seen."""
        return int(self._moments[0])

    @property
    def rank_error(self) -> float:
        """The rank of any value is known to within this share of the count; 0 means exactly."""
        return max(self._moved) / max(1, self.count)

    @property
    def held(self) -> int:
        """The number of numbers in memory."""
        return sum(map(len, self.levels))

    def add(self, values: Floats) -> None:
        """Add a batch."""
        if len(values):
            self._moments = joined_moments(self._moments, moments(values))
            self._put(0, values)
            self._compact()

    def merge(self, other: Sketch) -> None:
        """Add the numbers of another sketch; the errors add up."""
        if other.count:
            self._moments = joined_moments(self._moments, other._moments)
            self._moved = [own + added for own, added in zip(self._moved, other._moved, strict=True)]
            for level, values in enumerate(other.levels):
                self._put(level, values)
            self._compact()

    def statistics(self) -> dict[str, float]:
        """The statistics of a task, as in a fitted :class:`~tood.TOOD`; count, mean and std are always exact."""
        # While every number is held, its moments are computed from sorted numbers: the order of arrival has no effect.
        count, mean, squares = moments(self.levels[0]) if len(self.levels) == 1 else self._moments
        return {
            "count": float(count),
            "mean": float(mean),
            "median": self.median(),
            "mad": NORMAL_CONSISTENCY * self.mad(),
            "std": float(np.sqrt(squares / count)),
        }

    def median(self) -> float:
        """A value whose rank is within :attr:`rank_error` of the middle."""
        return _median(*self._weighted())

    def quantiles(self, shares: Floats) -> Floats:
        """Values whose ranks are within :attr:`rank_error` of the shares times the count."""
        values, weights = self._weighted()
        order = np.argsort(values, kind="stable")
        ends = np.cumsum(weights[order])
        result: Floats = values[order[np.minimum(np.searchsorted(ends, shares * ends[-1]), len(order) - 1)]]
        return result

    def mad(self) -> float:
        """The median distance from the median, within twice :attr:`rank_error`."""
        values, weights = self._weighted()
        return _median(np.abs(values - _median(values, weights)), weights)

    def _weighted(self) -> tuple[Floats, npt.NDArray[np.int64]]:
        weights = np.repeat(1 << np.arange(len(self.levels)), [len(values) for values in self.levels])
        return np.concatenate(self.levels), weights

    def _put(self, level: int, values: Floats) -> None:
        while len(self.levels) <= level:
            self.levels.append(np.empty(0))
        self.levels[level] = np.sort(np.concatenate([self.levels[level], values]))

    def _compact(self) -> None:
        level = 0
        while self.capacity and level < len(self.levels):
            values = self.levels[level]
            if len(values) > 2 * self.capacity:
                even = len(values) - len(values) % 2
                side = int(self._moved[1] < self._moved[0])  # keeping the upper of each pair lowers ranks
                self._moved[side] += 1 << level
                self._put(level + 1, values[side:even:2])
                self.levels[level] = values[even:]
            level += 1

    def state(self) -> dict[str, npt.NDArray[Any]]:
        """Everything, as arrays; see :meth:`from_state`."""
        return {
            "values": np.concatenate(self.levels),
            "sizes": np.array([len(values) for values in self.levels], dtype=np.int64),
            "moments": np.array([*self._moments, *self._moved]),
        }

    @classmethod
    def from_state(cls, capacity: int | None, state: dict[str, npt.NDArray[Any]]) -> Sketch:
        """The inverse of :meth:`state`."""
        self = cls(capacity)
        self.levels = np.split(state["values"], np.cumsum(state["sizes"])[:-1])
        self._moments, self._moved = state["moments"][:3].copy(), state["moments"][3:].tolist()
        return self


def moments(values: Floats) -> Floats:
    """``[n]`` to ``[3]``, or ``[n, N]`` to ``[3, N]``: count, mean and sum of squared deviations from the mean."""
    mean = values.mean(axis=0)
    return np.stack([np.full_like(mean, len(values)), mean, len(values) * values.var(axis=0)])


def joined_moments(a: Floats, b: Floats) -> Floats:
    """The :func:`moments` of two sets of numbers as one (Chan, Golub and LeVeque)."""
    total, gap = a[0] + b[0], b[1] - a[1]
    share = b[0] / np.maximum(total, 1)
    return np.stack([total, a[1] + gap * share, a[2] + b[2] + gap**2 * a[0] * share])


def _median(values: Floats, weights: npt.NDArray[np.int64]) -> float:
    """The weighted median: the mean of the two middle numbers if each counts ``weights`` times."""
    if len(values) == 0:
        raise ToodError("median: expected at least one number, found none")
    if weights[-1] == 1:
        return float(np.median(values))
    order = np.argsort(values, kind="stable")
    ends = np.cumsum(weights[order])
    total = int(ends[-1])
    low, high = values[order[np.searchsorted(ends, [(total + 1) // 2, total // 2 + 1])]]
    return float((low + high) / 2)

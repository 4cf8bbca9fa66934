"""Conformal test martingale: an anytime-valid test that a stream of numbers is exchangeable with a reference sample.

Each new number falls into one of the n + 1 gaps between the n reference values. If reference and stream are
exchangeable, gap j is hit with probability ``(1 + c_j) / (n + t)`` at step t, c_j being the earlier hits (the rank of a
new number among reference and past numbers, rounded to gaps). Spreading each hit uniformly over its gap's share gives
p-values that are independent and uniform, exactly and for any n (Vovk, Gammerman and Shafer 2005): a p-value against
the reference alone would not be, since all would share the reference's accidents. One count per gap is the whole
memory.

A bet multiplies its capital by ``f(p)``, a density on [0, 1], so that under exchangeability no strategy gains on
average. Capital starts at 1, and ``1 / (s (s + 1))`` of it is first bet at step s: so a change after s steps meets
capital that has lost nothing yet, and the delay grows only with log s. The e-value is the total capital. By Ville's
inequality it ever reaches 1 / alpha with probability at most alpha, over reference, stream and draws together.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from tood.arrays import Float64Array, IntArray

__all__ = ["Bets", "ExchangeabilityTest", "lower_bets", "two_sided_bets"]

STATE = ("values", "breakers", "hits", "capital", "path")  # files of version 0.2 have no path
CHUNK = 256  # numbers at a time: their order within a chunk is compared pair by pair
Bets = Callable[[Float64Array], Float64Array]  # p-values [m] to factors [m, K], each a density in p


def two_sided_bets(p: Float64Array) -> Float64Array:
    """``[m, 6]``: against a shift up or down (a little, a lot), and against a wider or narrower spread."""
    sides, ends = 2 * p - 1, 4 * np.abs(p - 0.5) - 1
    return 1 + np.stack([0.9 * sides, 0.4 * sides, -0.4 * sides, -0.9 * sides, 0.9 * ends, -0.9 * ends], axis=1)


def lower_bets(share: float) -> Bets:
    """``[m, 5]``: against more numbers than before among the lowest ``share``, and against a shift downwards."""

    def bets(p: Float64Array) -> Float64Array:
        low = (p <= share) / share
        more = [1 - stake + stake * low for stake in (0.05, 0.2, 0.5)]
        return np.stack([*more, 1 + 0.9 * (1 - 2 * p), 1 + 0.4 * (1 - 2 * p)], axis=1)

    return bets


class ExchangeabilityTest:
    """Sequential test of a stream against a reference sample, in memory that does not grow with the stream.

    Parameters
    ----------
    reference:
        ``[n]`` numbers.
    bets:
        The strategies, such as :func:`two_sided_bets`.
    rng:
        Source of the draws that spread p-values over their gaps and break ties.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> test = ExchangeabilityTest(rng.normal(size=200), two_sided_bets, rng)
    >>> test.update(rng.normal(size=1000))
    >>> same = test.largest
    >>> test.update(rng.normal(size=100) - 1)
    >>> bool(same < np.log(100) < test.largest)
    True
    """

    def __init__(self, reference: Any, bets: Bets, rng: np.random.Generator) -> None:
        values = np.asarray(reference, dtype=np.float64)
        breakers = rng.random(len(values))  # equal values have a random order, the same for all time
        order = np.lexsort((breakers, values))
        self.bets, self.rng = bets, rng
        self.values, self.breakers = values[order], breakers[order]
        self.hits: IntArray = np.zeros(len(values) + 1, dtype=np.int64)
        self.capital = np.full(bets(np.zeros(1)).shape[1], -np.inf)  # logarithms, one per bet
        self.largest = 0.0  # logarithm of the largest e-value so far
        # Per bet: logarithm of what 1 at the first step would be now, its lowest value, and the step after that.
        self.path = np.stack([np.zeros(len(self.capital)), np.zeros(len(self.capital)), np.ones(len(self.capital))])

    @property
    def seen(self) -> int:
        """The number of stream values so far."""
        return int(self.hits.sum())

    @property
    def start(self) -> int:
        """Likely first step of a change, counted from 1: since when the best bet has gained (as CUSUM estimates it)."""
        return int(self.path[2, self.capital.argmax()])

    @property
    def log_e_value(self) -> float:
        """The logarithm of the total capital: bet so far and held back."""
        return float(np.logaddexp.reduce([*self.capital, -np.log1p(self.seen)]))

    def update(self, values: npt.ArrayLike) -> None:
        """Add numbers ``[m]`` in the order in which they came."""
        numbers = np.asarray(values, dtype=np.float64)
        for start in range(0, len(numbers), CHUNK):
            first = self.seen + 1
            self._bet(self._p_values(numbers[start : start + CHUNK]), first)

    def _p_values(self, values: Float64Array) -> Float64Array:
        gaps = self._gaps(values)
        earlier = np.tri(len(gaps), k=-1, dtype=bool)
        below = (earlier & (gaps < gaps[:, None])).sum(axis=1)
        same = (earlier & (gaps == gaps[:, None])).sum(axis=1)
        weights = 1 + self.hits
        start = np.cumsum(weights) - weights
        spread = self.rng.random(len(gaps)) * (weights[gaps] + same)
        p = (start[gaps] + below + spread) / (weights.sum() + np.arange(len(gaps)))
        np.add.at(self.hits, gaps, 1)
        return np.asarray(p)

    def _gaps(self, values: Float64Array) -> IntArray:
        low, high = (np.searchsorted(self.values, values, side=side) for side in ("left", "right"))
        for row in np.flatnonzero(low < high):  # equal to reference values: by their random order
            low[row] += np.searchsorted(self.breakers[low[row] : high[row]], self.rng.random())
        return low

    def _bet(self, p: Float64Array, first: int) -> None:
        """Play the bets on p-values whose first belongs to step ``first``."""
        with np.errstate(divide="ignore"):
            growth = np.cumsum(np.log(self.bets(p)), axis=0)
        steps = np.arange(first, first + len(p))[:, None]
        before = np.vstack([np.zeros(growth.shape[1]), growth[:-1]])
        stakes = -np.log(steps * (steps + 1.0)) - np.log(growth.shape[1]) - before
        played = np.logaddexp.accumulate(np.vstack([self.capital, stakes]), axis=0)[1:] + growth
        e_values = np.logaddexp(np.logaddexp.reduce(played, axis=1), -np.log1p(steps[:, 0]))
        self.capital = played[-1]
        total, (now, lowest, since) = self.path[0] + before, self.path
        place = total.argmin(axis=0)
        since = np.where(total.min(axis=0) < lowest, first + place, since)
        self.path = np.stack([now + growth[-1], np.minimum(lowest, total.min(axis=0)), since])
        self.largest = max(self.largest, float(e_values.max()))

    def state(self) -> dict[str, npt.NDArray[Any]]:
        """Everything but bets and generator, as arrays; see :meth:`restore`."""
        return {name: np.asarray(getattr(self, name)) for name in STATE} | {"largest": np.array([self.largest])}

    @classmethod
    def restore(cls, state: dict[str, npt.NDArray[Any]], bets: Bets, rng: np.random.Generator) -> ExchangeabilityTest:
        """The inverse of :meth:`state`."""
        self = cls(np.empty(0), bets, rng)
        for name in STATE:
            setattr(self, name, np.array(state[name] if name != "path" else state.get(name, self.path)))
        self.largest = float(state["largest"][0])
        return self

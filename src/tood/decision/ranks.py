"""Ranks of scores among calibration scores: thresholds, conformal p-values, Benjamini-Hochberg."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, cast

import numpy as np
import numpy.typing as npt

from tood.arrays import FloatArray, IntArray, floats
from tood.arrays import finite as check_finite
from tood.errors import ToodError

__all__ = ["Ranks", "benjamini_hochberg", "p_values", "threshold"]

CELLS = 64  # of the grid, per known score
FEW = 64  # scores up to which bisection is faster than the grid
MOST_CELLS = 1 << 22


def threshold(scores: Any, recall: float = 0.95) -> float:
    """The highest threshold that at least ``recall`` of the scores reach; accept if ``score >= threshold``.

    It keeps that share of *these* samples; :class:`~tood.decision.Conformal` guarantees it for future ones.

    Parameters
    ----------
    scores:
        ``[n]`` of in-distribution samples, NumPy or torch, higher = ID.
    recall:
        The share to accept, above 0 and at most 1.

    Examples
    --------
    >>> threshold([4.0, 3.0, 2.0, 1.0], recall=0.75)
    2.0
    """
    values = np.sort(finite(scores, "scores"))[::-1]
    if not 0 < recall <= 1:
        raise ToodError(f"recall: expected a share above 0 and at most 1, found {recall}")
    accepted = np.arange(1, len(values) + 1) / len(values)
    return float(values[np.searchsorted(accepted, recall)])


def p_values(calibration: Any, scores: Any, uniform: Any = None) -> npt.NDArray[np.float64]:
    """Split-conformal p-values: the rank of each score among the calibration scores.

    If a calibration score and a test score are exchangeable, ``P(p <= alpha) <= alpha`` for every alpha; with
    ``uniform`` the two sides are equal, over samples, score and draw.

    Parameters
    ----------
    calibration:
        ``[n]`` scores of in-distribution samples.
    scores:
        ``[m]`` scores to judge, higher = ID.
    uniform:
        ``[m]`` independent draws from [0, 1) that break ties at random; without them ties count against rejection.

    Examples
    --------
    >>> p_values([1.0, 2.0, 3.0], [0.0, 2.5, 9.0])
    array([0.25, 0.75, 1.  ])
    """
    known = Ranks(finite(calibration, "calibration", least=0))
    return pooled_p_values([known], [finite(scores, "scores", least=0)], uniform)


def pooled_p_values(
    known: Sequence[Ranks], scores: Sequence[FloatArray], uniform: Any = None
) -> npt.NDArray[np.float64]:
    """Conformal p-values ``[m]`` over several calibration sets, each with its own scores ``[m]``: ranks are added."""
    total = 1 + sum(len(ranks.values) for ranks in known)
    pairs = list(zip(known, scores, strict=True))
    at_most = sum(ranks.count(own_scores, "right") for ranks, own_scores in pairs)
    if uniform is None:
        return np.asarray((1 + at_most) / total)
    below = sum(ranks.count(own_scores, "left") for ranks, own_scores in pairs)
    return np.asarray((below + uniform * (1 + at_most - below)) / total)


def benjamini_hochberg(p_values: Any, fdr: float = 0.1) -> npt.NDArray[np.bool_]:
    """Benjamini-Hochberg: reject inputs of a batch so that at most a share ``fdr`` of them is in-distribution.

    The false discovery rate is an average over batches. Conformal p-values of one calibration set are positively
    dependent (PRDS), so the procedure keeps its promise (Bates, Candès, Lei, Romano and Sesia, "Testing for outliers
    with conformal p-values", Annals of Statistics 2023); proved for ``per_task=None`` and scores without ties.

    Parameters
    ----------
    p_values:
        ``[n]``, as :meth:`Conformal.decide` gives them.
    fdr:
        The false discovery rate to keep, between 0 and 1.

    Examples
    --------
    >>> benjamini_hochberg([0.001, 0.5, 0.02], fdr=0.05).tolist()
    [True, False, True]
    """
    p = finite(p_values, "p_values", least=0)
    check_share("fdr", fdr)
    order = np.argsort(p, kind="stable")
    passing = np.flatnonzero(p[order] <= fdr * np.arange(1, len(p) + 1) / max(1, len(p)))
    rejected = np.zeros(len(p), dtype=bool)
    rejected[order[: passing[-1] + 1 if len(passing) else 0]] = True
    return rejected


class Ranks:
    """Ranks of many scores among sorted ``values``.

    A grid answers for every score whose cell holds no value, and bisection for the others. With bisection alone
    ``tood score`` takes a quarter more processor time (``benchmarks/score_stream.py``). The map to cells is monotone,
    so scores in different cells are in order.
    """

    def __init__(self, values: Any) -> None:
        self.values = np.sort(np.asarray(values, dtype=np.float64))
        cells = 3 + min(CELLS * len(self.values), MOST_CELLS)  # the first lies below all values, the last above
        span = self.values[-1] - self.values[0] if len(self.values) else 0.0
        self._per_unit = (cells - 3) / span if span > 1e-300 else 0.0
        self._last = cells - 1
        edges = self._cells(self.values)
        before, after = (np.searchsorted(edges, np.arange(cells), side=side) for side in ("left", "right"))
        self._before = np.where(before == after, before, -1).astype(np.int32)  # -1: the cell has values in it

    def threshold(self, alpha: float) -> float:
        """The k-th lowest value, for the largest k with ``k / (n + 1) <= alpha``; -inf if there is no such k."""
        steps = np.arange(1, len(self.values) + 1) / (len(self.values) + 1)
        k = int(np.searchsorted(steps, alpha, side="right"))
        return float(self.values[k - 1]) if k else -np.inf

    def _cells(self, scores: FloatArray) -> IntArray:
        if self._per_unit == 0:
            return np.ones(len(scores), dtype=np.int64)
        with np.errstate(over="ignore"):  # infinity is beyond the last cell, as it should be
            place = (scores.astype(np.float64) - self.values[0]) * self._per_unit + 1
        return cast(IntArray, np.clip(place, 0, self._last, out=place).astype(np.intp))

    def count(self, scores: FloatArray, side: Literal["left", "right"]) -> npt.NDArray[np.int32]:
        """How many values are at most (``"right"``) or below (``"left"``) each score."""
        if len(scores) <= FEW:
            return self.values.searchsorted(scores, side).astype(np.int32)
        count = self._before.take(self._cells(scores))
        unknown = np.flatnonzero(count < 0)
        count[unknown] = np.searchsorted(self.values, scores[unknown], side=side)
        return count


def pools(counts: Mapping[int, int], needed: int, parents: Iterable[Sequence[int]]) -> dict[int, list[int]]:
    """Whose samples decide for each group: its own if there are enough, else those of its parent, else all.

    Parameters
    ----------
    counts:
        Number of samples per group.
    needed:
        How many are enough.
    parents:
        Groups that may be taken together, such as the classes of each task; groups without samples may be in it.
    """
    wider: dict[int, list[int]] = {}
    for parent in parents:
        enough = sum(counts.get(group, 0) for group in parent) >= max(needed, 1)
        wider |= dict.fromkeys(parent, list(parent) if enough else [*counts])
    wider = {group: [*counts] for group in counts} | wider
    return {group: [group] if counts.get(group, 0) >= max(needed, 1) else pool for group, pool in wider.items()}


def warn_pooled(unit: str, groups: Iterable[int], needed: int, alpha: float, stacklevel: int = 4) -> None:
    """Say that alpha does not hold for each of some groups, because they have too few samples of their own."""
    pool = "their tasks, or of all if these are too few," if unit == "class" else "all tasks"
    warnings.warn(
        f"{unit} {', '.join(map(str, sorted(groups)))}: fewer than the {max(needed, 1)} calibration samples that "
        f"alpha={alpha} needs; decided by the samples of {pool} together, so alpha holds over these samples and not "
        f"for each {unit}",
        UserWarning,
        stacklevel=stacklevel,
    )


def finite(scores: Any, name: str, least: int = 1) -> FloatArray:
    """``scores`` as a NumPy array with one axis, checked to be finite and at least ``least``."""
    values = floats(scores, name, ndim=1)
    if len(values) < least:
        raise ToodError(f"{name}: expected at least {least} of them, found {len(values)}")
    return check_finite(values, name)


def check_seed(seed: Any) -> None:
    """Raise unless ``seed`` is a whole number, 0 or more."""
    if not isinstance(seed, (int, np.integer)) or seed < 0:
        raise ToodError(f"seed: expected a whole number, 0 or more, found {str(seed)[:40]}")


def check_share(name: str, share: float) -> None:
    """Raise unless ``share`` lies between 0 and 1."""
    if not 0 < share < 1:
        raise ToodError(f"{name}: expected a share between 0 and 1, found {share}")

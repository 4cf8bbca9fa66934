"""Ranks of scores among calibration scores: thresholds, conformal p-values, Benjamini-Hochberg."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from tood.arrays import Float64Array, FloatArray, floats
from tood.arrays import finite as check_finite
from tood.errors import ToodError

__all__ = ["benjamini_hochberg", "p_values", "threshold"]


def threshold(scores: Any, recall: float = 0.95) -> float:
    """The highest threshold that at least ``recall`` of the scores reach; accept if ``score >= threshold``.

    It keeps that share of *these* samples; :class:`~tood.decision.Conformal` promises it of future ones.

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


def p_values(calibration: Any, scores: Any, uniform: Any = None) -> Float64Array:
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
    known = sorted_scores(finite(calibration, "calibration", least=0))
    return pooled_p_values([known], [finite(scores, "scores", least=0)], uniform)


def pooled_p_values(known: Sequence[Float64Array], scores: Sequence[FloatArray], uniform: Any = None) -> Float64Array:
    """Conformal p-values ``[m]`` over several sorted calibration sets, each with its own scores ``[m]``; ranks add."""
    total = 1 + sum(map(len, known))
    pairs = list(zip(known, scores, strict=True))
    at_most = np.sum([np.searchsorted(values, own, side="right") for values, own in pairs], axis=0)
    if uniform is None:
        return np.asarray((1 + at_most) / total)
    below = np.sum([np.searchsorted(values, own, side="left") for values, own in pairs], axis=0)
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


def lowest_accepted(known: Float64Array, alpha: float) -> float:
    """The k-th lowest of the sorted scores ``known``, for the largest k with ``k / (n + 1) <= alpha``.

    -inf if there is no such k: nothing can be rejected.
    """
    steps = np.arange(1, len(known) + 1) / (len(known) + 1)
    k = int(np.searchsorted(steps, alpha, side="right"))
    return float(known[k - 1]) if k else -np.inf


def sorted_scores(scores: Any) -> Float64Array:
    """Calibration scores as :func:`pooled_p_values` and :func:`lowest_accepted` take them: float64, ascending."""
    return np.sort(np.asarray(scores, dtype=np.float64))


def finite(scores: Any, name: str, least: int = 1) -> FloatArray:
    """``scores`` as a NumPy array with one axis, checked to be finite and at least ``least``."""
    values = floats(scores, name, ndim=1)
    if len(values) < least:
        raise ToodError(f"{name}: expected at least {least} of them, found {len(values)}")
    return check_finite(values, name)


def check_share(name: str, share: float) -> None:
    """Raise unless ``share`` lies between 0 and 1."""
    if not 0 < share < 1:
        raise ToodError(f"{name}: expected a share between 0 and 1, found {share}")

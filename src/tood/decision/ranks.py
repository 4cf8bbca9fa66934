"""Ranks of scores among calibration scores: thresholds and conformal p-values."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from tood.arrays import Float64Array, FloatArray, floats
from tood.arrays import finite as check_finite
from tood.errors import ToodError, warn

__all__ = ["lower_quantile", "p_values", "pooled_p_values", "threshold"]


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


def p_values(calibration: Any, scores: Any) -> npt.NDArray[np.float64]:
    """Split-conformal p-values: the rank of each score among the calibration scores.

    If a calibration score and a test score are exchangeable, ``P(p <= alpha) <= alpha`` for every alpha. Ties count
    against rejection.

    Parameters
    ----------
    calibration:
        ``[n]`` scores of in-distribution samples.
    scores:
        ``[m]`` scores to judge, higher = ID.

    Examples
    --------
    >>> p_values([1.0, 2.0, 3.0], [0.0, 2.5, 9.0])
    array([0.25, 0.75, 1.  ])
    """
    known = np.sort(finite(calibration, "calibration", least=0).astype(np.float64))
    return pooled_p_values([known], [finite(scores, "scores", least=0)])


def pooled_p_values(known: Sequence[Float64Array], scores: Sequence[FloatArray]) -> npt.NDArray[np.float64]:
    """Conformal p-values ``[m]`` over several calibration sets, ascending, each with its own scores ``[m]``."""
    at_most = sum(values.searchsorted(own, "right") for values, own in zip(known, scores, strict=True))
    return np.asarray((1 + at_most) / (1 + sum(map(len, known))))


def lower_quantile(values: Float64Array, alpha: float) -> float:
    """The k-th lowest of ascending values, for the largest k with ``k / (n + 1) <= alpha``; -inf if there is none."""
    steps = np.arange(1, len(values) + 1) / (len(values) + 1)
    k = int(np.searchsorted(steps, alpha, side="right"))
    return float(values[k - 1]) if k else -np.inf


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


def warn_pooled(unit: str, groups: Iterable[int], needed: int, alpha: float) -> None:
    """Say that alpha does not hold for each of some groups, because they have too few samples of their own."""
    pool = "their tasks, or of all if these are too few," if unit == "class" else "all tasks"
    warn(
        f"{unit} {', '.join(map(str, sorted(groups)))}: fewer than the {max(needed, 1)} calibration samples that "
        f"alpha={alpha} needs; decided by the samples of {pool} together, so alpha holds over these samples and not "
        f"for each {unit}"
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

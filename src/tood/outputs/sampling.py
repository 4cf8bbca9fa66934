"""Class-balanced random draws, and herding."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tood.arrays import IntArray, floats, indices
from tood.errors import ToodError

__all__ = ["class_share", "draw_by_class", "herding"]


def draw_by_class(
    rows: IntArray, labels: IntArray, per_class: int, random: np.random.Generator | Sequence[int]
) -> IntArray:
    """Draw at most ``per_class`` rows of every class at random.

    Parameters
    ----------
    rows:
        The rows to draw from, ``[n]``.
    labels:
        The class of each of those rows, ``[n]``.
    per_class:
        Rows per class; all rows of a class that has fewer.
    random:
        A generator, used for one class after the other; or seeds: the draw of a class then depends only on the seeds,
        the class and its rows.

    Returns
    -------
    IntArray
        The drawn rows, grouped by ascending class.

    Examples
    --------
    >>> draw_by_class(np.arange(6), np.array([0, 0, 0, 1, 1, 1]), 1, random=(0,)).tolist()
    [2, 5]
    """
    rows = indices(rows, "rows")
    labels = indices(labels, "labels", len(rows))
    if not len(rows):
        raise ToodError("rows: expected samples of at least one class, found none")
    drawn = []
    for c in np.unique(labels):
        rng = random if isinstance(random, np.random.Generator) else np.random.default_rng([*random, int(c)])
        drawn.append(rng.permutation(rows[labels == c])[:per_class])
    return np.concatenate(drawn)


def class_share(total: int, classes: int) -> int:
    """Samples per class when ``total`` samples are shared equally."""
    if total < classes:
        raise ToodError(f"total: a memory of {total} cannot hold one sample of each of {classes} classes")
    return total // classes


def herding(features: Any, count: int) -> IntArray:
    """Herding: the samples whose running mean stays nearest to the class mean, best first (iCaRL, Algorithm 4).

    With ``f`` the features scaled to length one and ``mu`` their mean, the k-th pick is
    ``argmin_i ||mu - (f_i + sum of earlier picks) / k||`` among those not picked yet.

    Parameters
    ----------
    features:
        Features of one class, ``[n, D]``, scaled or not.
    count:
        Number of samples to pick; all if it exceeds n.

    Returns
    -------
    IntArray
        Positions in ``features``, ``[min(count, n)]``; a shorter selection is a prefix of a longer one.

    References
    ----------
    Rebuffi et al., "iCaRL: Incremental Classifier and Representation Learning", CVPR 2017.
    """
    f = floats(features, "features", 2).astype(np.float64)
    f /= np.maximum(np.linalg.norm(f, axis=1, keepdims=True), 1e-12)
    mean = f.mean(0)
    square = np.einsum("nd,nd->n", f, f)  # 1, or 0 for a feature of zeros
    total = np.zeros_like(mean)
    picked = np.empty(min(count, len(f)), np.int64)
    for k in range(1, len(picked) + 1):
        # k² ||mu - (f_i + total)/k||² without the terms that are the same for every i
        distance = square + 2 * (f @ (total - k * mean))
        distance[picked[: k - 1]] = np.inf
        picked[k - 1] = best = int(np.argmin(distance))
        total += f[best]
    return picked

"""Which samples to keep: class-balanced random draws, and herding."""

from __future__ import annotations

from typing import Any

import numpy as np

from tood.arrays import IntArray, floats, indices
from tood.errors import ToodError

__all__ = ["class_balanced", "class_share", "herding"]


def class_balanced(rows: IntArray, labels: IntArray, total: int, rng: np.random.Generator) -> IntArray:
    """A random draw with the same number of rows of every class: ``floor(total / classes)``.

    Parameters
    ----------
    rows:
        The rows to draw from, ``[n]``.
    labels:
        The class of each of those rows, ``[n]``.
    total:
        At most this many rows; at least one a class. A class with fewer rows than its share gives all it has.
    rng:
        Where the draw comes from.

    Returns
    -------
    IntArray
        The drawn rows, grouped by ascending class.
    """
    rows = indices(rows, "rows")
    labels = indices(labels, "labels", len(rows))
    classes = np.unique(labels)
    share = class_share(total, len(classes))
    return np.concatenate([rng.permutation(rows[labels == c])[:share] for c in classes])


def class_share(total: int, classes: int) -> int:
    """How many of ``total`` samples each class gets."""
    if classes < 1:
        raise ToodError("rows: expected samples of at least one class, found none")
    if total < classes:
        raise ToodError(f"total: a memory of {total} cannot hold one sample of each of {classes} classes")
    return total // classes


def herding(features: Any, count: int) -> IntArray:
    """The samples whose running mean stays nearest to the class mean, best first (iCaRL, Algorithm 4).

    With ``f`` the features scaled to length one and ``mu`` their mean, the k-th pick is
    ``argmin_i ||mu - (f_i + sum of earlier picks) / k||`` among those not picked yet.

    Parameters
    ----------
    features:
        Features of one class, ``[n, D]``, scaled or not.
    count:
        How many to pick; all where it exceeds n.

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
        # k² ||mu - (f_i + total)/k||² without what is the same for every i
        distance = square + 2 * (f @ (total - k * mean))
        distance[picked[: k - 1]] = np.inf
        picked[k - 1] = best = int(np.argmin(distance))
        total += f[best]
    return picked

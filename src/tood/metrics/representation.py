"""Representations along a stream: similarity (CKA), crowding (nearest distances), the confidence gap."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from tood.arrays import Array, ArrayT, Float64Array, back, finite, floats
from tood.calibration.statistics import own_energies, task_of_labels
from tood.energy import check_columns
from tood.errors import ToodError
from tood.partition import Partition

BLOCK = 1 << 22  # elements per block of distances: 32 MiB
EPSILON = float(np.finfo(np.float64).eps)


def linear_cka(a: Any, b: Any) -> float:
    """Linear centred kernel alignment of two representations of the same samples, in [0, 1].

    It is 1 when one is the other rotated, scaled and shifted. No samples × samples matrix is formed.

    Parameters
    ----------
    a, b:
        ``[n, D1]`` and ``[n, D2]``, NumPy or torch; row k of both belongs to the same sample.

    Examples
    --------
    >>> import numpy as np
    >>> a = np.array([[0.0, 1.0], [2.0, 0.0], [1.0, 5.0]])
    >>> round(linear_cka(a, 3 * a[:, ::-1] + 1), 12)
    1.0

    References
    ----------
    Kornblith et al., "Similarity of Neural Network Representations Revisited", ICML 2019.
    """
    x, y = _centred(a, "a"), _centred(b, "b")
    if len(x) != len(y):
        raise ToodError(f"b: expected the {len(x)} samples of a, found {len(y)}")
    alignment = _cross_norm(x, y) / np.sqrt(_cross_norm(x, x) * _cross_norm(y, y))
    return float(min(1.0, alignment))


def nearest_distance(ood_features: ArrayT, id_features: Array) -> ArrayT:
    """The Euclidean distance from each OOD sample to the nearest ID sample, which crowding reduces.

    Computed in blocks of bounded size. Matrix products find the neighbour; its distance comes from the difference
    itself, so it keeps full precision.

    Parameters
    ----------
    ood_features, id_features:
        ``[n, D]`` and ``[m, D]``, NumPy or torch.

    Returns
    -------
    ``[n]`` in float64, of the kind of ``ood_features``.

    Examples
    --------
    >>> import numpy as np
    >>> nearest_distance(np.array([[3.0, 4.0], [0.0, 2.0]]), np.array([[0.0, 0.0], [0.0, 1.0]]))
    array([4.24264069, 1.        ])
    """
    oods, ids = _features(ood_features, "ood_features"), _features(id_features, "id_features")
    if oods.shape[1] != ids.shape[1]:
        raise ToodError(f"ood_features: expected the {ids.shape[1]} columns of id_features, found {oods.shape[1]}")
    centre = ids.mean(axis=0)  # cancels, and saves digits
    oods, ids = oods - centre, ids - centre
    half_squares = np.einsum("ij,ij->i", ids, ids) / 2
    nearest = np.empty(len(oods))
    step = max(1, BLOCK // len(ids))
    for rows in (slice(start, start + step) for start in range(0, len(oods), step)):
        neighbours = ids[(half_squares - oods[rows] @ ids.T).argmin(axis=1)]
        nearest[rows] = np.linalg.norm(oods[rows] - neighbours, axis=1)
    return back(nearest, like=ood_features)


def confidence_gap(logits: Any, labels: Any, partition: Partition | Iterable[Iterable[int]]) -> Float64Array:
    """The mean energy of each task's samples in their own channel (paper, "The Confidence Gap").

    The gap is the difference of any two entries; that of the last and the first is how far the oldest task has sunk.

    Parameters
    ----------
    logits:
        ``[n, C]``, NumPy or torch, of ID samples of every task.
    labels:
        ``[n]``, the logit column of each sample's class.
    partition:
        The columns of each of the N tasks.

    Returns
    -------
    ``[N]``, NumPy.

    Examples
    --------
    >>> import numpy as np
    >>> confidence_gap(np.array([[1.0, 0.0], [3.0, 0.0], [0.0, 9.0]]), [0, 0, 1], [[0], [1]])
    array([2., 9.])
    """
    partition = check_columns(logits, partition)
    tasks = task_of_labels(labels, partition, rows=len(logits))
    own = own_energies(logits, tasks, partition)
    return np.bincount(tasks, weights=own) / np.bincount(tasks)


def _features(features: Any, name: str) -> Float64Array:
    array = finite(floats(features, name, ndim=2).astype(np.float64, copy=False), name)
    if array.size == 0:
        raise ToodError(f"{name}: expected features [samples, D], found shape {array.shape}")
    return array  # type: ignore[return-value]


def _centred(features: Any, name: str) -> Float64Array:
    """Columns of mean 0, and a largest entry of 1: CKA has no scale, and squares then cannot overflow."""
    array = _features(features, name)
    centred: Float64Array = array - array.mean(axis=0)
    size = np.abs(centred).max()
    if size <= 8 * EPSILON * np.abs(array).max():
        raise ToodError(f"{name}: expected features that differ between samples, found {len(array)} equal rows")
    centred /= size
    return centred


def _cross_norm(x: Float64Array, y: Float64Array) -> float:
    """The squared Frobenius norm of ``xᵀ y``."""
    return float(np.linalg.norm(x.T @ y) ** 2)

"""Row by row: log-sum-exp, softmax, unit length. What a row gives never depends on the rows beside it."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from tood.arrays import FloatArray, IntArray

SAFE = 1e-20, 1e25  # sums of exponentials between these have lost nothing, in float32 too


class Exponentials(NamedTuple):
    """``exp(x - shift)`` and their sums, one row a sample."""

    values: FloatArray  # [n, C]
    total: FloatArray  # [n]
    shift: FloatArray | float  # [n], or 0 for all


def exponentials(x: FloatArray) -> Exponentials:
    """Exponentials of each row, shifted by its maximum only where they overflow or vanish without.

    The shift costs as much as the exponential, and the relative precision is the same without. Each row decides for
    itself, by its sum.
    """
    ones = np.ones(x.shape[1], dtype=x.dtype)
    with np.errstate(over="ignore"):
        values = np.exp(x)
        total = values @ ones
    lost = ~((total > SAFE[0]) & (total < SAFE[1]))
    if not lost.any():
        return Exponentials(values, total, 0.0)
    shift = np.where(lost, x.max(axis=1), x.dtype.type(0))
    values[lost] = np.exp(x[lost] - shift[lost, None])
    total[lost] = values[lost] @ ones
    return Exponentials(values, total, shift)


def logsumexp(x: FloatArray) -> FloatArray:
    """``[n, C]`` to ``[n]``: log Σ_c exp(x_c), the energy."""
    _, total, shift = exponentials(x)
    np.log(total, out=total)
    total += shift
    return total


def softmax(x: FloatArray) -> FloatArray:
    """``[n, C]``: probabilities of each row."""
    values, total, _ = exponentials(x)
    values /= total[:, None]
    return values


def norms(x: FloatArray) -> FloatArray:
    """``[n, D]`` to ``[n]``: Euclidean lengths."""
    result: FloatArray = np.sqrt(np.einsum("nd,nd->n", x, x))
    return result


def unit(x: FloatArray) -> FloatArray:
    """Each row divided by its length; a zero row has no direction and stays zero."""
    length = norms(x)
    return x / np.where(length > 0, length, 1)[:, None]


def ratio(above: FloatArray, below: FloatArray, otherwise: float) -> FloatArray:
    """``above / below``, and ``otherwise`` where ``below`` is zero."""
    zero = below == 0
    result: FloatArray = np.where(zero, above.dtype.type(otherwise), above / np.where(zero, below.dtype.type(1), below))
    return result


def own_columns(x: npt.NDArray[Any], columns: IntArray) -> npt.NDArray[Any]:
    """``x[i, columns[i]]`` of each row."""
    result: npt.NDArray[Any] = x[np.arange(len(x)), columns]
    return result


def with_lead(values: FloatArray, margin: float) -> FloatArray:
    """``[n, N]`` to ``[n]``: the largest of each row plus ``margin`` times its lead over the second."""
    best: FloatArray = values.max(axis=1)
    if not margin or values.shape[1] == 1:
        return best
    second = np.partition(values, -2, axis=1)[:, -2]
    result: FloatArray = best + margin * (best - second)
    return result

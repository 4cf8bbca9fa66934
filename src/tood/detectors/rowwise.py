"""Row by row: log-sum-exp, softmax, unit length. What a row gives never depends on the rows beside it."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from tood.arrays import FloatArray, IntArray

SAFE = 50.0  # exp(±50) times any number of columns is far from the limits of float32


class Exponentials(NamedTuple):
    """``exp(x - shift)`` and their sums, one row a sample."""

    values: FloatArray  # [n, C]
    total: FloatArray  # [n]
    shift: FloatArray | float  # [n], or 0 for all


def exponentials(x: FloatArray, overwrite: bool = False) -> Exponentials:
    """Exponentials of each row, shifted by its maximum only where they could overflow or vanish without.

    The shift costs as much as the exponential, the relative precision is the same without, and each row decides for
    itself: that all numbers are small only spares looking at the rows one by one. ``overwrite`` lets the exponentials
    take the place of ``x``.
    """
    shift: FloatArray | float = 0.0
    if x.max(initial=0) < SAFE and x.min(initial=0) > -SAFE:
        values = np.exp(x, out=x if overwrite else None)
    else:
        top = x.max(axis=1)
        shift = np.where(np.abs(top) < SAFE, x.dtype.type(0), top)
        values = np.exp(x - shift[:, None])
    return Exponentials(values, values @ np.ones(x.shape[1], dtype=x.dtype), shift)


def logsumexp(x: FloatArray, overwrite: bool = False) -> FloatArray:
    """``[n, C]`` to ``[n]``: log Σ_c exp(x_c), the energy."""
    _, total, shift = exponentials(x, overwrite)
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

"""Row-wise functions: softmax, norms, unit length. The result of a row never depends on the rows beside it."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from tood.arrays import FloatArray, IntArray
from tood.energy import exponentials


def softmax(x: FloatArray) -> FloatArray:
    """``[n, C]``: probabilities of each row."""
    values, total, _ = exponentials(x)
    values /= total[:, None]
    return values


def norms(x: FloatArray) -> FloatArray:
    """``[n, D]`` to ``[n]``: Euclidean lengths."""
    return np.sqrt(np.einsum("nd,nd->n", x, x))


def unit(x: FloatArray) -> FloatArray:
    """Each row divided by its length; a zero row has no direction and stays zero."""
    with np.errstate(over="ignore"):
        length = norms(x)
    extreme = ~((length > np.sqrt(np.finfo(x.dtype).tiny)) & (length < np.inf))
    result: FloatArray = x / np.where(extreme, 1, length)[:, None]
    if extreme.any():  # the squares of these entries are too large or too small for the precision
        rows = x[extreme]
        largest = np.abs(rows).max(axis=1, initial=0)
        rows = rows / np.where(largest > 0, largest, 1)[:, None]
        result[extreme] = rows / np.where(largest > 0, norms(rows), 1)[:, None]
    return result


def ratio(above: FloatArray, below: FloatArray, otherwise: float) -> FloatArray:
    """``above / below``; ``otherwise`` if ``below`` is zero."""
    zero = below == 0
    return np.where(zero, above.dtype.type(otherwise), above / np.where(zero, below.dtype.type(1), below))


def own_columns(x: npt.NDArray[Any], columns: IntArray) -> npt.NDArray[Any]:
    """``x[i, columns[i]]`` of each row."""
    return x[np.arange(len(x)), columns]

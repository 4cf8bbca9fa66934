"""Energies: log-sum-exp over all columns, or over each task's own columns (paper, Eq. task_energy); and the lead.

Each task's segment is stabilised by its own maximum, so a task whose logits lie far below another's keeps full
precision. Rows are processed in blocks that fit the cache, transposed so that rows lie innermost: every reduction then
runs along contiguous memory, however short the segments are. No temporary has the size of the input.
``benchmarks/scoring.py`` measures time and memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from tood.arrays import ArrayT, FloatArray, IntArray, as_array, back, floats, is_finite, is_tensor
from tood.errors import ToodError
from tood.partition import Partition

__all__ = ["energy", "task_energies"]

BLOCK = 1 << 19  # elements per block, 2 MiB of float32: smaller ones cost more calls, larger ones leave the cache
FEW = 64  # columns up to which argmax is faster than one pass per channel
SAFE = 1e-20, 1e25  # a sum of exponentials between these has lost nothing, in float32 too


def energy(logits: ArrayT) -> ArrayT:
    """The energy of each row, ``log Σ_c exp(logits[:, c])``; higher means more in-distribution.

    Parameters
    ----------
    logits:
        ``[n, C]``, NumPy or torch.

    Returns
    -------
    ``[n]``, of the same kind, on the same device; half precision becomes float32.

    Examples
    --------
    >>> import numpy as np
    >>> energy(np.zeros((2, 4))).round(4)
    array([1.3863, 1.3863])
    """
    logits = as_array(logits)
    _columns(logits)
    out = np.empty(len(logits), dtype=score_dtype(logits))
    for rows, block in finite_blocks(logits):
        out[rows] = logsumexp(block)
    return back(out, like=logits)


def task_energies(logits: ArrayT, partition: Partition) -> ArrayT:
    """Energy of each task's columns, ``E_t(x) = log Σ_{c in task t} exp(h_c(x))``.

    Parameters
    ----------
    logits:
        ``[n, C]``, NumPy or torch.
    partition:
        The columns of each task; it must cover the C columns.

    Returns
    -------
    ``[n, N]``: one column per task.

    Examples
    --------
    >>> import numpy as np
    >>> task_energies(np.array([[0.0, 0.0, 3.0]]), Partition([[0, 1], [2]])).round(4)
    array([[0.6931, 3.    ]])
    """
    logits = as_array(logits)
    partition = check_columns(logits, partition)
    out = np.empty((len(logits), len(partition)), dtype=score_dtype(logits))
    for rows, values in energy_blocks(logits, partition):
        out[rows] = values.T
    return back(out, like=logits)


def finite_blocks(logits: Any) -> Iterator[tuple[slice, FloatArray]]:
    """Yield ``(rows, block)`` with each block ``[rows, C]`` in floating point and checked to be finite."""
    step = max(32, BLOCK // int(logits.shape[1]))
    for start in range(0, len(logits), step):
        rows = slice(start, start + step)
        block = floats(logits[rows], "logits", ndim=2)
        if not is_finite(block):
            raise _not_finite(block, start)
        yield rows, block


def energy_blocks(logits: Any, partition: Partition) -> Iterator[tuple[slice, FloatArray]]:
    """Yield ``(rows, energies)`` block by block; ``energies`` is ``[N, rows]`` and may be overwritten."""
    for rows, block in finite_blocks(logits):
        yield rows, segment_logsumexp(block, partition)


def exponentials(x: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray | float]:
    """``exp(x - shift)`` ``[n, C]``, their sums ``[n]``, and the shift ``[n]``, or 0 for all.

    A row is shifted by its maximum only if its exponentials overflow or vanish without.

    The shift costs as much as the exponential (``benchmarks/detectors.py``), and the relative precision is the same
    without. Each row decides for itself, by its sum, so its result does not depend on other rows.
    """
    with np.errstate(over="ignore"):
        values = np.exp(x)
        total = _row_sums(values)
    if len(total) <= FEW and all(SAFE[0] < each < SAFE[1] for each in total.tolist()):
        return values, total, 0.0
    lost = ~((total > SAFE[0]) & (total < SAFE[1]))
    if not lost.any():
        return values, total, 0.0
    shift = np.where(lost, x.max(axis=1), x.dtype.type(0))
    values[lost] = np.exp(x[lost] - shift[lost, None])
    total[lost] = _row_sums(values[lost])
    return values, total, shift


def _row_sums(values: FloatArray) -> FloatArray:
    """``[n]``. A matrix product would add up a row in an order that depends on the number of rows."""
    return np.einsum("nc->n", values)


def logsumexp(x: FloatArray) -> FloatArray:
    """``[n, C]`` to ``[n]``: log Σ_c exp(x_c) of NumPy rows; unlike :func:`energy` it does not check its input."""
    _, total, shift = exponentials(x)
    np.log(total, out=total)
    total += shift
    return total


def segment_logsumexp(block: FloatArray, partition: Partition) -> FloatArray:
    """Task energies of a block, ``[rows, C]`` to ``[N, rows]``; unlike :func:`task_energies` it checks nothing.

    Tasks of equal size are reduced together; exp and log run once per block.
    """
    order, in_order, groups = partition.layout
    if len(block) == 1:  # NumPy adds up a single column in another order: a row must score the same alone
        return segment_logsumexp(np.repeat(block, 2, axis=0), partition)[:, :1]
    turned = np.array(block.T, order="C") if in_order else block.T[order]  # always a copy: it is overwritten below
    width = turned.shape[1]
    top = np.empty((len(partition), width), dtype=turned.dtype)
    total = np.empty_like(top)
    segments, first = [], 0
    for start, size, members in groups:
        segment = turned[start : start + size * len(members)].reshape(len(members), size, width)
        places = slice(first, first + len(members))
        segment -= segment.max(axis=1, out=top[places])[:, None]
        segments.append((segment, places))
        first += len(members)
    np.exp(turned, out=turned)
    for segment, places in segments:
        segment.sum(axis=1, out=total[places])
    np.log(total, out=total)
    total += top
    if len(groups) == 1:
        return total
    top[np.concatenate([members for _, _, members in groups])] = total
    return top


def with_lead(values: FloatArray, margin: float) -> FloatArray:
    """``[n, N]`` to ``[n]``: the largest of each row plus ``margin`` times its lead over the second."""
    return largest_with_lead(np.ascontiguousarray(values.T), margin)[0]


def largest_with_lead(values: FloatArray, margin: float, winners: bool = False) -> tuple[FloatArray, IntArray]:
    """The largest of each column of ``values`` ``[N, n]`` plus ``margin`` times its lead over the second.

    Also returns the channel of the largest, the first of equal ones, if ``winners`` is true. With one channel the lead
    is 0.
    """
    if len(values) > 1 and values.shape[1] <= FEW:
        second, top = np.partition(values, -2, axis=0)[-2:]
        return top + margin * (top - second), values.argmax(axis=0)
    top = values.max(axis=0)
    channel = np.zeros(len(top), dtype=np.int64)
    if len(values) == 1:
        return top, channel
    at_top = values == top
    if winners:
        for number in range(len(values) - 1, -1, -1):
            np.putmask(channel, at_top[number], number)
    if margin:
        second = np.where(at_top, -np.inf, values).max(axis=0)
        if np.count_nonzero(at_top) > len(top):  # ties: seldom, and counting them per column is slow
            second = np.where(at_top.sum(axis=0) > 1, top, second)
        top = top + margin * (top - second)
    return top, channel


def score_dtype(logits: Any) -> np.dtype[Any]:
    """float64 for float64 and integers, float32 for float32 and less."""
    floating = logits.dtype.is_floating_point if is_tensor(logits) else logits.dtype.kind == "f"
    return np.dtype(np.float32 if floating and logits.dtype.itemsize <= 4 else np.float64)


def check_columns(logits: Any, partition: Any) -> Partition:
    """The partition, checked to cover the columns of the logits."""
    columns = _columns(logits)
    known = partition if isinstance(partition, Partition) else Partition(partition)
    if columns != known.columns:
        raise ToodError(
            f"logits: expected {known.columns} columns, those of the {len(known)} tasks, "
            f"found shape {tuple(logits.shape)}"
        )
    return known


def _columns(logits: Any) -> int:
    if len(logits.shape) != 2 or logits.shape[1] == 0:
        raise ToodError(f"logits: expected an array [samples, columns], found shape {tuple(logits.shape)}")
    return int(logits.shape[1])


def _not_finite(logits: FloatArray, first_row: int = 0) -> ToodError:
    row, column = np.argwhere(~np.isfinite(logits))[0]
    value = logits[row, column]
    return ToodError(f"logits: expected finite numbers, found {value} in row {first_row + row}, column {column}")

"""Energies: log-sum-exp over all columns, or over each task's own columns (paper, Eq. task_energy).

Each segment is stabilised by its own maximum, so a task whose logits lie far below another's keeps full precision.
Rows are taken in blocks that fit the cache and turned so that the rows lie innermost: every reduction then runs along
contiguous memory however short the segments are. Nothing of the size of the input is ever allocated.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, TypeGuard, cast

import numpy as np

from tood.arrays import ArrayT, FloatArray, as_array, back, floats, is_tensor
from tood.errors import ToodError
from tood.partition import Partition

if TYPE_CHECKING:
    import torch

__all__ = ["energy", "task_energies"]

BLOCK = 1 << 18  # elements a block: 1 MiB of float32 stays in the second-level cache


def energy(logits: ArrayT) -> ArrayT:
    """The energy of each row, ``log Σ_c exp(logits[:, c])``; higher means more in-distribution.

    Parameters
    ----------
    logits:
        ``[n, C]``, NumPy or torch.

    Returns
    -------
    ``[n]``, of the same kind, on the same device; half precision comes back as float32.

    Examples
    --------
    >>> import numpy as np
    >>> energy(np.zeros((2, 4))).round(4)
    array([1.3863, 1.3863])
    """
    logits = as_array(logits)
    columns = _columns(logits)
    return task_energies(logits, Partition.from_sizes([columns]))[:, 0]  # type: ignore[return-value]


def task_energies(logits: ArrayT, partition: Partition) -> ArrayT:
    """One energy a task, ``E_t(x) = log Σ_{c in task t} exp(h_c(x))``.

    Parameters
    ----------
    logits:
        ``[n, C]``, NumPy or torch.
    partition:
        The columns of each task; it must cover the C columns.

    Returns
    -------
    ``[n, N]``: a column a task.

    Examples
    --------
    >>> import numpy as np
    >>> task_energies(np.array([[0.0, 0.0, 3.0]]), Partition([[0, 1], [2]])).round(4)
    array([[0.6931, 3.    ]])
    """
    logits = as_array(logits)
    partition = check_columns(logits, partition)
    if on_torch(logits):
        return cast(ArrayT, tensor_energies(logits, partition))
    rows = len(logits)
    out: FloatArray | None = None
    for block, values in energy_blocks(logits, partition):
        if out is None:
            out = np.empty((rows, len(partition)), dtype=values.dtype)
        out[block] = values.T
    if out is None:
        out = np.empty((0, len(partition)), dtype=floats(logits, "logits", ndim=2).dtype)
    return back(out, like=logits)


def energy_blocks(logits: Any, partition: Partition) -> Iterator[tuple[slice, FloatArray]]:
    """Yield ``(rows, energies)`` block by block, ``energies`` being ``[N, rows]`` and the caller's to overwrite."""
    step = max(32, BLOCK // partition.columns)
    for start in range(0, len(logits), step):
        rows = slice(start, start + step)
        block = floats(logits[rows], "logits", ndim=2)
        if not (np.isfinite(block.min()) and np.isfinite(block.max())):
            raise _not_finite(block, start)
        yield rows, _segment_logsumexp(block, partition)


def _segment_logsumexp(block: FloatArray, partition: Partition) -> FloatArray:
    """``[rows, C]`` to ``[N, rows]``."""
    order, in_order, groups = partition.layout
    if len(block) == 1:  # NumPy adds up a single column in another order: a row alone shall score as among others
        return _segment_logsumexp(np.repeat(block, 2, axis=0), partition)[:, :1]
    turned = np.array(block.T, order="C")  # always a copy: it is overwritten below
    if not in_order:
        turned = turned.take(order, axis=0)
    width = turned.shape[1]
    out = np.empty((len(partition), width), dtype=turned.dtype)
    for start, size, members in groups:
        segment = turned[start : start + size * len(members)].reshape(len(members), size, width)
        top = segment.max(axis=1)
        segment -= top[:, None]
        np.exp(segment, out=segment)
        total = segment.sum(axis=1)
        np.log(total, out=total)
        total += top
        out[members] = total
    return out


def on_torch(logits: object) -> TypeGuard[torch.Tensor]:
    """Must this stay in torch: on a device other than the CPU, or part of a graph of gradients?"""
    if not is_tensor(logits):
        return False
    import torch

    return logits.device.type != "cpu" or (logits.requires_grad and torch.is_grad_enabled())


def tensor_energies(logits: torch.Tensor, partition: Partition) -> torch.Tensor:
    """The same in torch alone, differentiable, on any device."""
    import torch

    order, in_order, groups = partition.layout
    if logits.dtype in (torch.float16, torch.bfloat16):
        logits = logits.float()
    if not torch.isfinite(logits).all():
        raise _not_finite(logits.detach().cpu().numpy())
    if not in_order:
        logits = logits.index_select(1, torch.from_numpy(order).to(logits.device))
    parts = [
        logits[:, start : start + size * len(members)].reshape(-1, len(members), size).logsumexp(2)
        for start, size, members in groups
    ]
    places = torch.from_numpy(np.argsort(np.concatenate([members for _, _, members in groups])))
    return torch.cat(parts, dim=1).index_select(1, places.to(logits.device))


def check_columns(logits: Any, partition: Any) -> Partition:
    """The partition, once it is known to fit the logits."""
    columns = _columns(logits)
    known = partition if isinstance(partition, Partition) else Partition(partition)
    if columns != known.columns:
        raise ToodError(
            f"logits: expected {known.columns} columns, those of the {len(known)} tasks, "
            f"found shape {tuple(logits.shape)}"
        )
    return known


def _columns(logits: Any) -> int:
    shape = getattr(logits, "shape", None)
    if shape is None or len(shape) != 2 or shape[1] == 0:
        found = type(logits).__name__ if shape is None else f"shape {tuple(shape)}"
        raise ToodError(f"logits: expected an array [samples, columns], found {found}")
    return int(shape[1])


def _not_finite(logits: FloatArray, first_row: int = 0) -> ToodError:
    row, column = np.argwhere(~np.isfinite(logits))[0]
    found = logits[row, column]
    return ToodError(f"logits: expected finite numbers, found {found} in row {first_row + row}, column {column}")

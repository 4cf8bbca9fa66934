"""The rows of a file of logits in blocks, in the same memory however many there are.

Three layouts are read: ``.npy``, an array ``[n, C]``; ``.npz``, whose member ``logits`` is one; and ``.parquet``, with
either a column ``logits`` of lists of C numbers or one column a class, named ``logit_0`` to ``logit_{C-1}``. Arrays are
read into one buffer and never mapped, since mapped pages would count as resident.
"""

from __future__ import annotations

import contextlib
import os
import re
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np

from tood.arrays import FloatArray
from tood.errors import MissingDependencyError, ToodError, UnknownNameError
from tood.files import DAMAGE, npy_header

__all__ = ["LogitsFile"]

BLOCK_BYTES = 1 << 21


class _Header(NamedTuple):
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    size: int  # bytes before the data


class LogitsFile:
    """A file of logits, opened as often as it is read.

    Parameters
    ----------
    path:
        The file; its suffix says which layout it has.

    Examples
    --------
    >>> import tempfile
    >>> path = tempfile.mkdtemp() + "/logits.npy"
    >>> np.save(path, np.arange(6.0).reshape(3, 2))
    >>> file = LogitsFile(path)
    >>> file.rows, [block.tolist() for block in file.blocks(start=1)]
    (3, [[[2.0, 3.0], [4.0, 5.0]]])
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        layout = self.path.suffix.lower()
        if layout not in (".npy", ".npz", ".parquet"):
            raise UnknownNameError("file type", layout or self.path.name, [".npy", ".npz", ".parquet"])
        if not self.path.is_file():
            raise ToodError(f"{self.path}: no such file")
        self._layout = layout
        with self._errors():
            self.rows = self._parquet().metadata.num_rows if layout == ".parquet" else self._read_header().shape[0]

    def blocks(self, start: int = 0) -> Iterator[FloatArray]:
        """Yield ``[rows, C]`` from row ``start`` on; a block is overwritten by the next."""
        with self._errors():
            yield from self._parquet_blocks(start) if self._layout == ".parquet" else self._array_blocks(start)

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        """One error that names the file, whichever library noticed that something is wrong with it."""
        try:
            yield
        except ToodError:
            raise
        except DAMAGE as error:
            raise ToodError(f"{self.path}: truncated, or not a {self._layout} file of logits ({error})") from error

    # Arrays

    @contextlib.contextmanager
    def _open(self) -> Iterator[IO[bytes]]:
        if self._layout == ".npy":
            with self.path.open("rb", buffering=0) as file:
                yield file
            return
        with zipfile.ZipFile(self.path) as archive:
            if "logits.npy" not in archive.namelist():
                found = ", ".join(name.removesuffix(".npy") for name in archive.namelist())
                raise ToodError(f"{self.path}: expected an array 'logits', found {found or 'none'}")
            with archive.open("logits.npy") as member:
                yield member

    def _read_header(self) -> _Header:
        with self._open() as file:
            shape, by_column, dtype = npy_header(file)
            size = file.tell()
        if len(shape) != 2 or shape[1] == 0 or dtype.kind not in "fiu" or (by_column and 1 not in shape):
            order = " in Fortran order; save np.ascontiguousarray of it" if by_column else ""
            raise ToodError(f"{self.path}: expected numbers [rows, columns], found {dtype} {shape}{order}")
        expected = size + shape[0] * shape[1] * dtype.itemsize
        if self._layout == ".npy" and self.path.stat().st_size < expected:
            raise ToodError(f"{self.path}: truncated: expected {expected} bytes, found {self.path.stat().st_size}")
        return _Header(shape, dtype, size)

    def _array_blocks(self, start: int) -> Iterator[FloatArray]:
        (rows, columns), dtype, offset = self._read_header()
        width = columns * dtype.itemsize
        buffer = np.empty((max(1, BLOCK_BYTES // width), columns), dtype=dtype)
        view = buffer.view(np.uint8).data.cast("B")
        with self._open() as file:
            file.seek(offset + start * width)
            while start < rows:
                count = min(len(buffer), rows - start)
                _fill(file, view[: count * width])
                yield buffer[:count]
                start += count

    # Parquet

    def _parquet(self) -> Any:
        try:
            import pyarrow.parquet
        except ImportError as error:
            raise MissingDependencyError("pyarrow", "report", "reading Parquet") from error
        return pyarrow.parquet.ParquetFile(self.path, pre_buffer=False)

    def _parquet_blocks(self, start: int) -> Iterator[FloatArray]:
        file = self._parquet()
        columns, by_class = self._parquet_columns(file.schema_arrow.names)
        sizes = [file.metadata.row_group(g).num_rows for g in range(file.metadata.num_row_groups)]
        ends = np.cumsum(sizes)
        first = int(np.searchsorted(ends, start, side="right"))
        skip = start - (int(ends[first - 1]) if first else 0)
        groups = list(range(first, len(sizes)))
        for batch in file.iter_batches(1 << 14, row_groups=groups, columns=columns, use_threads=False):
            taken = batch.slice(min(skip, len(batch)))
            skip -= len(batch) - len(taken)
            if len(taken):
                yield self._stacked(taken) if by_class else self._flattened(taken.column(0))

    def _parquet_columns(self, names: list[str]) -> tuple[list[str], bool]:
        if "logits" in names:
            return ["logits"], False
        numbered = {int(match[1]): name for name in names if (match := re.fullmatch(r"logit_(\d+)", name))}
        if not numbered or set(numbered) != set(range(len(numbered))):
            raise ToodError(
                f"{self.path}: expected a column 'logits' of lists, or columns logit_0, logit_1, … without a gap; "
                f"found {', '.join(names[:8])}"
            )
        return [numbered[c] for c in range(len(numbered))], True

    def _stacked(self, batch: Any) -> FloatArray:
        if any(column.null_count for column in batch.columns):
            raise ToodError(f"{self.path}: expected a number in every logit column, found a null")
        return np.stack([column.to_numpy() for column in batch.columns], axis=1)

    def _flattened(self, column: Any) -> FloatArray:
        values = column.flatten()
        lengths = np.unique(column.value_lengths().to_numpy(zero_copy_only=False))
        if column.null_count or values.null_count or len(lengths) != 1 or not lengths[0] > 0:
            raise ToodError(f"{self.path}: expected lists of one length in 'logits', found lengths {lengths.tolist()}")
        array: FloatArray = values.to_numpy(zero_copy_only=False).reshape(len(column), -1)
        return array


def _fill(file: IO[bytes], view: memoryview) -> None:
    """Read until ``view`` is full."""
    done = 0
    while done < len(view):
        count = file.readinto(view[done:])  # type: ignore[attr-defined]
        if not count:
            raise EOFError(f"{len(view) - done} bytes are missing at the end")
        done += count

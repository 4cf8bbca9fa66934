"""Reader for files of logits, labels and other columns, block by block in constant memory.

======================== ========================================================= ==============================
file                     logits                                                    labels, other columns
======================== ========================================================= ==============================
.npy                     an array ``[n, C]``                                       none
.npz                     the array ``logits``, or the only array                   the array of that name
.parquet                 a column ``logits`` of lists, or columns ``logit_0``, …   the column of that name
.arrow, .feather, .ipc   or ``0``, ``1``, …
.csv                     the same; without a header, every column is a logit
======================== ========================================================= ==============================

Missing numbers are read as NaN; the caller decides whether a row with NaN is an error.
"""

from __future__ import annotations

import contextlib
import csv
import importlib
import os
import re
import zipfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, Any, Literal, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from tood.arrays import FloatArray, IntArray, indices
from tood.errors import MissingDependencyError, ToodError, UnknownNameError
from tood.files import npy_header, npz_member, reading

__all__ = ["SUFFIXES", "Block", "Invalid", "LogitsFile", "read_labelled", "valid_rows"]

ARRAYS, IPC = (".npy", ".npz"), (".arrow", ".feather", ".ipc")
SUFFIXES = (*ARRAYS, ".parquet", *IPC, ".csv")
LABELS = ("labels", "label")
BLOCK_BYTES = 1 << 20  # stays in the second-level cache: larger and smaller blocks are slower
BATCH_ROWS = 1 << 14
ARROW_FILE, ARROW_STREAM_END = b"ARROW1", b"\xff\xff\xff\xff\0\0\0\0"
Invalid: TypeAlias = Literal["error", "reject"]  # what to do with rows that have a missing, NaN or infinite logit


class Block(NamedTuple):
    """Consecutive rows of a file."""

    logits: FloatArray  # [rows, C], to read only
    columns: dict[str, Any]  # the columns to keep, by name: NumPy or Arrow arrays [rows]


class LogitsFile:
    r"""A file of logits; every call of :meth:`blocks` reads it from the start.

    Parameters
    ----------
    path:
        The file; its suffix decides the format.
    keep:
        Names of other columns to read too. Those of a CSV file stay text.

    Examples
    --------
    >>> import tempfile
    >>> path = tempfile.mkdtemp() + "/logits.csv"
    >>> _ = Path(path).write_text("name,logit_0,logit_1\na,0.5,1\nb,2,-1\n")
    >>> [block] = LogitsFile(path, keep=["name"]).blocks()
    >>> block.logits.tolist(), block.columns["name"].tolist()
    ([[0.5, 1.0], [2.0, -1.0]], ['a', 'b'])
    """

    def __init__(self, path: str | os.PathLike[str], keep: Iterable[str] = ()) -> None:
        self.path, self.keep = Path(path), tuple(keep)
        self.suffix = self.path.suffix.lower()
        if not self.path.is_file():
            raise ToodError(f"{self.path}: no such file")
        if self.suffix not in SUFFIXES:
            raise UnknownNameError("file type", self.suffix or self.path.name, SUFFIXES)
        with self._errors():
            names = self._names()
        missing = [name for name in self.keep if name not in names]
        if missing:
            raise ToodError(f"{self.path}: expected a column {missing[0]!r}, found {_listed(names)}")

    @property
    def rows(self) -> int | None:
        """The number of rows; of a CSV file above 1 MiB an estimate from its first lines, of an Arrow stream None."""
        with self._errors():
            if self.suffix in ARRAYS:
                return self._header()[0][0]
            if self.suffix == ".csv":
                header = int(self._csv_header()[1])
                with self.path.open("rb") as file:
                    start = file.read(1 << 20)
                lines = start.count(b"\n") + (not start.endswith(b"\n"))
                return max(0, lines * self.path.stat().st_size // len(start) - header)
            if self.suffix == ".parquet":
                return int(_pyarrow("parquet").read_metadata(self.path).num_rows)
            if self._is_stream():
                return None
            return int(_pyarrow("dataset").dataset(self.path, format="ipc").count_rows())

    @property
    def label_column(self) -> str | None:
        """The name of the column of labels, if there is one."""
        with self._errors():
            return next((name for name in LABELS if name in self._names()), None)

    def blocks(self) -> Iterator[Block]:
        """Yield the rows in order."""
        with self._errors():
            yield from self._array_blocks() if self.suffix in ARRAYS else self._table_blocks()

    def read(self) -> FloatArray:
        """All logits ``[n, C]``; a file without rows is an error."""
        blocks = [block.logits for block in self.blocks()]
        if not blocks:
            raise ToodError(f"{self.path}: expected rows of logits, found none")
        return np.concatenate(blocks)

    def column(self, name: str | None = None) -> npt.NDArray[Any]:
        """One whole column by name, or the only one of a file."""
        with self._errors():
            if self.suffix == ".npy":
                return np.asarray(np.load(self.path, allow_pickle=False))
            names = self._names()
            if name is None and len(names) != 1:
                raise ToodError(f"{self.path}: expected a column 'labels' or a single one, found {_listed(names)}")
            name = names[0] if name is None else name
            if self.suffix == ".npz":
                return npz_member(self.path, name)
            parts = [batch.column(0).to_numpy(zero_copy_only=False) for batch in self._batches([name], [name])]
            return np.concatenate(parts) if parts else np.empty(0)

    def _names(self) -> list[str]:
        """The arrays or columns of the file."""
        if self.suffix == ".npy":
            return []
        if self.suffix == ".npz":
            with zipfile.ZipFile(self.path) as archive:
                return [name.removesuffix(".npy") for name in archive.namelist()]
        if self.suffix == ".csv":
            return self._csv_header()[0]
        if self.suffix == ".parquet":
            return list(_pyarrow("parquet").read_schema(self.path).names)
        with self._ipc() as reader:
            return list(reader.schema.names)

    def _errors(self) -> contextlib.AbstractContextManager[None]:
        return reading(self.path, f"truncated, or not a {self.suffix} file of numbers")

    # Arrays. Rows are read and not mapped: mapped pages count as resident, and memory must not grow with the file
    # (benchmarks/score_stream.py).

    def _array_name(self) -> str:
        """The array of an ``.npz`` file that holds logits."""
        names = self._names()
        name = "logits" if "logits" in names or len(names) != 1 else names[0]
        if name not in names:
            raise ToodError(f"{self.path}: expected an array 'logits', found {_listed(names)}")
        return name

    @contextlib.contextmanager
    def _open(self) -> Iterator[IO[bytes]]:
        if self.suffix == ".npy":
            with self.path.open("rb") as file:
                yield file
            return
        with zipfile.ZipFile(self.path) as archive, archive.open(f"{self._array_name()}.npy") as member:
            yield member

    def _header(self) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
        with self._open() as file:
            shape, by_column, dtype = npy_header(file)
            expected = file.tell() + int(np.prod(shape, dtype=object)) * dtype.itemsize
        if len(shape) != 2 or shape[1] == 0 or dtype.kind not in "fiu":
            raise ToodError(f"{self.path}: expected numbers [rows, columns], found {dtype} {shape}")
        if self.suffix == ".npy" and self.path.stat().st_size < expected:
            raise ToodError(f"{self.path}: truncated: expected {expected} bytes, found {self.path.stat().st_size}")
        return shape, by_column, dtype

    def _array_blocks(self) -> Iterator[Block]:
        (rows, columns), by_column, dtype = self._header()
        kept = {name: self.column(name) for name in self.keep}
        for name, values in kept.items():
            if values.shape[:1] != (rows,):
                raise ToodError(f"{self.path}: {name}: expected {rows} entries, one per row, found {values.shape}")
        step = max(1, BLOCK_BYTES // (columns * dtype.itemsize))
        # Rows of an array in Fortran order are not consecutive in the file: it is read as a whole.
        whole = self.column(None if self.suffix == ".npy" else self._array_name()) if by_column else None
        with self._open() as file:
            npy_header(file)
            for start in range(0, rows, step):
                count = min(step, rows - start)
                if whole is None:
                    values = np.frombuffer(file.read(count * columns * dtype.itemsize), dtype).reshape(count, columns)
                else:
                    values = whole[start : start + count]
                yield Block(values, {name: column[start : start + count] for name, column in kept.items()})

    # Tables: Parquet, Arrow and CSV are streams of Arrow record batches.

    def _table_blocks(self) -> Iterator[Block]:
        columns, as_list = self._logit_columns(self._names())
        start = 0
        for batch in self._batches([*columns, *self.keep], columns):
            logits = batch.columns[: len(columns)]
            if as_list:
                values = self._flattened(logits[0], start)
            else:  # one array per class; a null is NaN
                values = np.stack([column.to_numpy(zero_copy_only=False) for column in logits], axis=1)
            yield Block(values, {name: batch.column(name) for name in self.keep})
            start += len(values)

    def _logit_columns(self, names: list[str]) -> tuple[list[str], bool]:
        """The columns that hold logits, and whether that is one column of lists."""
        if "logits" in names:
            return ["logits"], True
        numbered = {int(match[1]): name for name in names if (match := re.fullmatch(r"(?:logit_)?(\d+)", name))}
        if not numbered or set(numbered) != set(range(len(numbered))):
            raise ToodError(
                f"{self.path}: expected a column 'logits' of lists, or columns logit_0, logit_1, … without a gap; "
                f"found {_listed(names)}"
            )
        return [numbered[c] for c in range(len(numbered))], False

    def _batches(self, columns: list[str], numbers: list[str]) -> Iterator[Any]:
        """Yield Arrow record batches of ``columns``; columns of a CSV that are not in ``numbers`` are text."""
        if self.suffix == ".parquet":
            file = _pyarrow("parquet").ParquetFile(self.path, pre_buffer=False)
            yield from file.iter_batches(BATCH_ROWS, columns=columns, use_threads=False)
        elif self.suffix == ".csv":
            names, header = self._csv_header()
            module = _pyarrow("csv")
            types = {name: "float64" if name in numbers else "string" for name in columns}
            yield from module.open_csv(
                self.path,
                module.ReadOptions(use_threads=False, column_names=names, skip_rows=int(header)),
                convert_options=module.ConvertOptions(include_columns=columns, column_types=types),
            )
        else:
            with self._ipc() as reader:
                stored = reader if self._is_stream() else map(reader.get_batch, range(reader.num_record_batches))
                for batch in stored:
                    wanted = batch.select(columns)
                    yield from (wanted.slice(start, BATCH_ROWS) for start in range(0, len(wanted), BATCH_ROWS))

    def _is_stream(self) -> bool:
        """Whether an Arrow file is in the streaming format, as Hugging Face datasets are, which has no footer."""
        with self.path.open("rb") as file:
            if file.read(len(ARROW_FILE)) == ARROW_FILE:
                return False
            file.seek(-len(ARROW_STREAM_END), os.SEEK_END)
            if file.read() != ARROW_STREAM_END:
                raise ToodError(f"{self.path}: truncated, or not an Arrow file")
        return True

    @contextlib.contextmanager
    def _ipc(self) -> Iterator[Any]:
        ipc = _pyarrow("ipc")
        open_reader = ipc.open_stream if self._is_stream() else ipc.open_file
        with self.path.open("rb") as file, open_reader(file) as reader:
            yield reader

    def _csv_header(self) -> tuple[list[str], bool]:
        """Column names, and whether the file has them. A first line of numbers is data, unless it is 0, 1, 2, …"""
        with self.path.open(newline="", encoding="utf-8-sig") as file:
            first = [field.strip() for field in next(csv.reader(file), [])]
        if not first:
            raise ToodError(f"{self.path}: expected rows of numbers, found an empty file")
        if len(first) == 1 and any(separator in first[0] for separator in ";\t|"):
            raise ToodError(f"{self.path}: expected columns separated by commas, found {first[0][:60]!r}")
        numbers = [str(c) for c in range(len(first))]
        named = (first == numbers and len(first) > 1) or not all(map(_is_number, first))
        return (first, True) if named else (numbers, False)

    def _flattened(self, column: Any, start: int) -> FloatArray:
        """A column of lists as ``[rows, C]``; a null list is a row of NaN."""
        lengths = column.value_lengths()
        sizes = np.unique(lengths.drop_null().to_numpy(zero_copy_only=False))
        if len(sizes) > 1 or not all(sizes > 0):
            odd = int(np.argmax(lengths.fill_null(int(sizes[-1])).to_numpy(zero_copy_only=False) != sizes[-1]))
            raise ToodError(
                f"{self.path}: expected lists of one length in 'logits', found {sizes[:5].tolist()}, first in "
                f"row {start + odd}"
            )
        values = column.drop_null().flatten().to_numpy(zero_copy_only=False).reshape(-1, *map(int, sizes))
        if not column.null_count:
            return np.asarray(values)
        if len(sizes) == 0:
            raise ToodError(f"{self.path}: expected lists of numbers in 'logits', found only nulls")
        out = np.full((len(column), int(sizes[0])), np.nan, dtype=np.result_type(values, np.float32))
        out[np.flatnonzero(column.is_valid().to_numpy(zero_copy_only=False))] = values
        return out


def read_labelled(
    path: str | os.PathLike[str], labels: str | os.PathLike[str] | None = None
) -> tuple[FloatArray, IntArray]:
    """Logits ``[n, C]`` and labels ``[n]`` from one file with a column of labels, or from two files.

    Parameters
    ----------
    path:
        The file of logits, with a column (or array) ``labels`` or ``label`` unless the other file is given.
    labels:
        A file of labels: any of the same formats, with such a column or a single one.
    """
    file = LogitsFile(path)
    source = file if labels is None else LogitsFile(labels)
    name = source.label_column
    if labels is None and name is None:
        raise ToodError(f"{file.path}: expected labels beside the logits, found none; give a file of --labels")
    logits, found = file.read(), source.column(name)
    try:
        return logits, indices(found, "labels", length=len(logits))
    except ToodError as error:
        raise ToodError(f"{source.path}: {error}") from error


def valid_rows(
    logits: FloatArray, invalid: Invalid, path: str | os.PathLike[str], start: int = 0
) -> npt.NDArray[np.bool_]:
    """``[n]`` bool: the rows whose logits are all finite.

    With ``invalid="error"`` the first other row is an error that gives its number in the file; ``start`` is the number
    of the first row here.
    """
    finite = np.isfinite(logits)
    valid = np.asarray(finite.all(axis=1))
    if invalid == "error" and not valid.all():
        row = int(valid.argmin())
        column = int(finite[row].argmin())
        raise ToodError(
            f"{os.fspath(path)}: row {start + row}, column {column}: expected a finite number, found "
            f"{logits[row, column]}; `--invalid reject` continues without such rows"
        )
    return valid


def _listed(names: list[str]) -> str:
    return ", ".join(names[:8]) + (", …" if len(names) > 8 else "") or "none"


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _pyarrow(module: str) -> Any:
    try:
        return importlib.import_module(f"pyarrow.{module}")
    except ImportError as error:
        raise MissingDependencyError("pyarrow", "report", "reading tables") from error

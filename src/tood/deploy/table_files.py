"""Reader for tables with logits: Parquet, Arrow and CSV files as streams of Arrow record batches."""

from __future__ import annotations

import contextlib
import csv
import functools
import importlib
import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from tood.arrays import FloatArray
from tood.errors import MissingDependencyError, ToodError
from tood.outputs.outputs import Outputs

__all__ = ["SUFFIXES", "Block", "TableFile", "listed"]

SUFFIXES = (".parquet", ".arrow", ".feather", ".ipc", ".csv")
BATCH_ROWS = 1 << 14
MOST_VALUES, MOST_PER_BYTE = 10_000_000, 20  # a small compressed file may hold the first; a large one the second
VALUE = 8  # bytes of a number
ARROW_FILE, ARROW_STREAM_END = b"ARROW1", b"\xff\xff\xff\xff\0\0\0\0"
ARROW_FILE_START = 8  # where the messages of a file begin


class Block(NamedTuple):
    """Consecutive rows of a file."""

    logits: FloatArray  # [rows, C], to read only
    columns: dict[str, Any]  # the columns to keep, by name: NumPy or Arrow arrays [rows]

    @property
    def outputs(self) -> Outputs:
        """Logits, and the features if they were read."""
        features = self.columns.get("features")
        if features is not None and not isinstance(features, np.ndarray):
            if features.null_count:
                raise ToodError("features: expected a list of numbers in every row, found null")
            features = features.flatten().to_numpy(zero_copy_only=False).reshape(len(features), -1)
        return Outputs(self.logits, features)


class TableFile:
    """A table with logits in a column of lists, or in one column per class.

    Parameters
    ----------
    path:
        The file; its suffix decides the format.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.suffix = path.suffix.lower()

    def names(self) -> list[str]:
        """The names of the columns."""
        if self.suffix == ".csv":
            return self._csv_header()[0]
        if self.suffix == ".parquet":
            return list(_pyarrow("parquet").read_schema(self.path).names)
        with self._ipc() as reader:
            return list(reader.schema.names)

    def rows(self) -> int | None:
        """The number of rows; None if the file does not say."""
        return int(_pyarrow("parquet").read_metadata(self.path).num_rows) if self.suffix == ".parquet" else None

    def column(self, name: str) -> npt.NDArray[Any]:
        """One whole column; that of a CSV file is text."""
        batches = [batch.column(0).to_numpy(zero_copy_only=False) for batch in self._batches([name], [])]
        return np.concatenate(batches) if batches else np.empty(0)

    def blocks(self, keep: Sequence[str]) -> Iterator[Block]:
        """Yield the rows in order, with the columns to keep."""
        columns, as_list = self._logit_columns()
        start = 0
        for batch in self._batches(list(dict.fromkeys([*columns, *keep])), columns):
            logits = batch.columns[: len(columns)]
            values = self._flattened(logits[0], start) if as_list else self._stacked(logits)
            yield Block(values, {name: batch.column(name) for name in keep})
            start += len(values)

    def _logit_columns(self) -> tuple[list[str], bool]:
        """The columns that hold logits, and whether that is one column of lists."""
        names = self.names()
        if "logits" in names:
            return ["logits"], True
        spelled = [name for name in names if re.fullmatch(r"logit_\d+", name)]
        spelled = spelled or [name for name in names if re.fullmatch(r"\d+", name)]
        numbered = {int(name.removeprefix("logit_")): name for name in spelled}
        if len(numbered) < len(spelled):
            raise ToodError(f"{self.path}: two columns of logits have the same number; found {listed(spelled)}")
        if not numbered or set(numbered) != set(range(len(numbered))):
            raise ToodError(
                f"{self.path}: expected a column 'logits' of lists, or columns logit_0, logit_1, … without a gap; "
                f"found {listed(names)}"
            )
        return [numbered[c] for c in range(len(numbered))], False

    def _batches(self, columns: list[str], numbers: list[str]) -> Iterator[Any]:
        """Yield Arrow record batches of ``columns``; columns of a CSV that are not in ``numbers`` are text."""
        if self.suffix == ".parquet":
            file = _pyarrow("parquet").ParquetFile(self.path, pre_buffer=False)
            groups = map(file.metadata.row_group, range(file.num_row_groups))
            self._check_size(sum(group.column(c).num_values for group in groups for c in range(group.num_columns)))
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
            self._check_size(self._unpacked() // VALUE)
            with self._ipc() as reader:
                for batch in reader if self._is_stream() else map(reader.get_batch, range(reader.num_record_batches)):
                    wanted = batch.select(columns)
                    yield from (wanted.slice(start, BATCH_ROWS) for start in range(0, len(wanted), BATCH_ROWS))

    def _check_size(self, values: int) -> None:
        """Raise if a file claims more values than it plausibly holds: unpacked, they would take gigabytes."""
        size = self.path.stat().st_size
        if values > max(MOST_VALUES, MOST_PER_BYTE * size):
            raise ToodError(f"{self.path}: {size} bytes claim to hold {values} values")

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

    def _unpacked(self) -> int:
        """Bytes that the record batches of an Arrow file take in memory, from the sizes that its messages declare."""
        total = 0
        with _pyarrow("lib").memory_map(str(self.path)) as source:
            source.seek(0 if self._is_stream() else ARROW_FILE_START)
            for message in _pyarrow("ipc").MessageReader.open_stream(source):
                # A RecordBatch of Arrow's Message.fbs has fields 2, its buffers, and 3, set if these are compressed.
                data, body = message.metadata.to_pybytes(), message.body
                batch = _child(data, _child(data, 0), 2)
                batch = _child(data, batch, 1) if message.type == "dictionary" else batch
                if message.type != "schema" and _field(data, batch, 3):
                    buffers = _child(data, batch, 2)
                    count = int(np.frombuffer(data, "<u4", 1, buffers)[0])
                    places = np.frombuffer(data, "<i8", 2 * count, buffers + 4).reshape(count, 2)
                    # A compressed buffer begins with its size; -1 for one that is stored as it is.
                    sizes = [int(np.frombuffer(body, "<i8", 1, start)[0]) for start, length in places if length]
                    total += sum(size for size in sizes if size > 0)
        return total

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

    def _stacked(self, columns: Sequence[Any]) -> FloatArray:
        """One column per class as ``[rows, C]``; whole numbers beside others are float64, as they are beside nulls."""
        arrays = [self._numbers(column) for column in columns]
        kinds = {array.dtype.kind for array in arrays}
        stacked: FloatArray = np.stack(arrays, axis=1, dtype=np.float64 if "f" in kinds and len(kinds) > 1 else None)
        return stacked

    def _flattened(self, column: Any, start: int) -> FloatArray:
        """A column of lists as ``[rows, C]``; a null list is a row of NaN."""
        sizes = column.value_lengths().fill_null(self._list_length).to_numpy(zero_copy_only=False)
        if (odd := sizes != self._list_length).any():
            raise ToodError(
                f"{self.path}: expected lists of one length in 'logits', found {self._list_length} and "
                f"{sizes[odd.argmax()]}, first in row {start + int(odd.argmax())}"
            )
        values = self._numbers(column.drop_null().flatten()).reshape(-1, self._list_length)
        if not column.null_count:
            return values
        # The type must not depend on which batch has nulls: whole numbers are scored as float64.
        dtype = values.dtype if values.dtype.kind == "f" else np.float64
        rows = np.full((len(column), self._list_length), np.nan, dtype)
        rows[column.is_valid().to_numpy(zero_copy_only=False)] = values
        return rows

    def _numbers(self, column: Any) -> FloatArray:
        """A column as a NumPy array; a null is NaN."""
        values: FloatArray = column.to_numpy(zero_copy_only=False)
        if values.dtype.kind not in "fiu":
            raise ToodError(f"{self.path}: expected numbers as logits, found {column.type}")
        return values

    @functools.cached_property
    def _list_length(self) -> int:
        """The length of the first list in 'logits' that is not null."""
        for batch in self._batches(["logits"], ["logits"]):
            for length in batch.column(0).value_lengths().drop_null()[:1].to_pylist():
                return int(length)
        raise ToodError(f"{self.path}: expected lists of numbers in 'logits', found only nulls")


def listed(names: list[str]) -> str:
    """The first names of a file, for a message."""
    return ", ".join(names[:8]) + (", …" if len(names) > 8 else "") or "none"


def _field(data: bytes, table: int, number: int) -> int:
    """The place of a field of a flatbuffer table; 0 if it is not set."""
    entries = table - int(np.frombuffer(data, "<i4", 1, table)[0])
    if 4 + 2 * number >= np.frombuffer(data, "<u2", 1, entries)[0]:
        return 0
    offset = int(np.frombuffer(data, "<u2", 1, entries + 4 + 2 * number)[0])
    return table + offset if offset else 0


def _child(data: bytes, table: int, number: int | None = None) -> int:
    """The place of what a field of a flatbuffer table refers to; without a number, of the root table."""
    place = table if number is None else _field(data, table, number)
    return place + int(np.frombuffer(data, "<u4", 1, place)[0])


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

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
import os
import zipfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from tood.arrays import FloatArray, IntArray, indices
from tood.deploy.table_files import SUFFIXES as TABLES
from tood.deploy.table_files import Block, TableFile, listed
from tood.errors import ToodError, UnknownNameError, located
from tood.outputs.outputs import Outputs
from tood.storage.files import reading
from tood.storage.npz import npy_header, npz_member, npz_names

__all__ = ["SUFFIXES", "Block", "Invalid", "LogitsFile", "read_labelled", "valid_rows"]

ARRAYS = (".npy", ".npz")
SUFFIXES = (*ARRAYS, *TABLES)
LABELS = ("labels", "label")
NAMES_TO_COLUMNS = (
    "replace each class name by its logit column, as in [classes.index(name) for name in labels] with classes in the "
    "order of the columns"
)
BLOCK_BYTES = 1 << 20  # stays in the second-level cache: larger and smaller blocks are slower
Invalid: TypeAlias = Literal["error", "reject"]  # what to do with rows that have a missing, NaN or infinite logit


class LogitsFile:
    r"""A file of logits; every call of :meth:`blocks` reads it from the start.

    Parameters
    ----------
    path:
        The file; its suffix decides the format.
    keep:
        Names of other columns to read too. Those of a CSV file stay text.
    features:
        Also read the array, or column of lists, ``features`` if there is one.

    Examples
    --------
    >>> import tempfile
    >>> path = tempfile.mkdtemp() + "/logits.csv"
    >>> _ = Path(path).write_text("name,logit_0,logit_1\na,0.5,1\nb,2,-1\n")
    >>> [block] = LogitsFile(path, keep=["name"]).blocks()
    >>> block.logits.tolist(), block.columns["name"].tolist()
    ([[0.5, 1.0], [2.0, -1.0]], ['a', 'b'])
    """

    def __init__(self, path: str | os.PathLike[str], keep: Iterable[str] = (), features: bool = False) -> None:
        self.path, self.keep = Path(path), tuple(dict.fromkeys(keep))
        self.suffix = self.path.suffix.lower()
        if not self.path.is_file():
            raise ToodError(f"{self.path}: no such file")
        if self.suffix not in SUFFIXES:
            raise ToodError(f"{self.path}: {UnknownNameError('file type', self.suffix, SUFFIXES)}")
        self._file: TableFile | _ArrayFile
        self._file = TableFile(self.path) if self.suffix in TABLES else _ArrayFile(self.path)
        with self._errors():
            names = self._file.names()
        missing = [name for name in self.keep if name not in names]
        if missing:
            raise ToodError(f"{self.path}: expected a column {missing[0]!r}, found {listed(names)}")
        self._others = [*self.keep, "features"] if features and "features" in names else [*self.keep]

    @property
    def rows(self) -> int | None:
        """The number of rows; None for CSV and Arrow files, which do not say."""
        with self._errors():
            return self._file.rows()

    @property
    def label_column(self) -> str | None:
        """The name of the column of labels, if there is one."""
        with self._errors():
            return next((name for name in LABELS if name in self._file.names()), None)

    def blocks(self) -> Iterator[Block]:
        """Yield the rows in order."""
        with self._errors():
            yield from self._file.blocks(self._others)

    def read(self) -> FloatArray:
        """All logits ``[n, C]``; a file without rows is an error."""
        blocks = [block.logits for block in self.blocks()]
        if not blocks:
            raise ToodError(f"{self.path}: expected rows of logits, found none")
        return np.concatenate(blocks)

    def outputs(self, invalid: Invalid) -> Outputs:
        """All valid rows, with the features if they are read."""
        parts, start = [Outputs(np.empty((0, 1)))], 0
        for block in self.blocks():
            parts.append(block.outputs[valid_rows(block.logits, invalid, self.path, start)])
            start += len(block.logits)
        parts = parts[1:] or parts
        features = [part.features for part in parts if part.features is not None]
        return Outputs(np.concatenate([part.logits for part in parts]), np.concatenate(features) if features else None)

    def column(self, name: str | None = None) -> npt.NDArray[Any]:
        """One whole column by name, or the only one of a file; that of a CSV file is text."""
        with self._errors():
            names = [name] if name else self._file.names()
            if len(names) != 1:
                raise ToodError(f"{self.path}: expected a column 'labels' or a single one, found {listed(names)}")
            return self._file.column(names[0])

    def _errors(self) -> contextlib.AbstractContextManager[None]:
        return reading(self.path, f"truncated, or not a {self.suffix} file of numbers")


class _ArrayFile:
    """An ``.npy`` file, whose only array has no name, or an ``.npz`` file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.is_npz = path.suffix.lower() == ".npz"

    def names(self) -> list[str]:
        return npz_names(self.path) if self.is_npz else [""]

    def rows(self) -> int:
        with self._open() as file:
            return npy_header(file)[0][0]

    def column(self, name: str) -> npt.NDArray[Any]:
        return npz_member(self.path, name) if self.is_npz else np.load(self.path, allow_pickle=False)

    def blocks(self, others: Iterable[str]) -> Iterator[Block]:
        """Yield the rows. They are read and not mapped: mapped pages count as resident memory, which must not grow
        with the file (``benchmarks/score_stream.py``).
        """
        with self._open() as file:
            shape, by_column, dtype = npy_header(file)
            if len(shape) != 2 or shape[1] == 0 or dtype.kind not in "fiu":
                raise ToodError(f"{self.path}: expected numbers [rows, columns], found {dtype} {shape}")
            rows, columns = shape
            kept = {name: self.column(name) for name in others}
            for name, values in kept.items():
                if values.shape[:1] != (rows,):
                    raise ToodError(f"{self.path}: {name}: expected {rows} entries, one per row, found {values.shape}")
            # Rows of an array in Fortran order are not consecutive in the file: it is read as a whole.
            whole = self.column(self._logits()) if by_column else None
            step = max(1, BLOCK_BYTES // (columns * dtype.itemsize))
            for start in range(0, rows, step):
                stop = min(start + step, rows)
                if whole is None:
                    data = file.read((stop - start) * columns * dtype.itemsize)
                    logits = np.frombuffer(data, dtype).reshape(stop - start, columns)
                else:
                    logits = whole[start:stop]
                yield Block(logits, {name: values[start:stop] for name, values in kept.items()})
            # In an .npz the end also compares the checksum. A flipped bit in the header may hide rows.
            if whole is None and file.read():
                raise ToodError(f"{self.path}: damaged: more numbers than its shape {shape} says")

    def _logits(self) -> str:
        """The array of logits: the one of this name, or the only one."""
        names = self.names()
        if "logits" not in names and len(names) != 1:
            raise ToodError(f"{self.path}: expected an array 'logits', found {listed(names)}")
        return "logits" if "logits" in names else names[0]

    @contextlib.contextmanager
    def _open(self) -> Iterator[IO[bytes]]:
        """The array of logits as an open ``.npy`` file."""
        if not self.is_npz:
            with self.path.open("rb") as file:
                yield file
            return
        with zipfile.ZipFile(self.path) as archive, archive.open(f"{self._logits()}.npy") as member:
            yield member


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
    logits, values = file.read(), source.column(name)
    with located(source.path):
        return logits, indices(_numbers(values, logits.shape[1]), "labels", length=len(logits))


def _numbers(labels: npt.NDArray[Any], columns: int) -> npt.NDArray[Any]:
    """Labels as numbers, which a table may hold as text; a class name is an error."""
    try:
        return np.array([float(label) for label in labels.tolist()]) if labels.dtype.kind in "OSU" else labels
    except (TypeError, ValueError) as error:
        raise ToodError(f"labels: expected logit columns 0 to {columns - 1} ({error}); {NAMES_TO_COLUMNS}") from error


def valid_rows(
    logits: FloatArray, invalid: Invalid, path: str | os.PathLike[str], start: int = 0
) -> npt.NDArray[np.bool_]:
    """``[n]`` bool: the rows whose logits are all finite.

    With ``invalid="error"`` the first other row is an error that gives its number in the file; ``start`` is the number
    of the first row here.
    """
    finite = np.isfinite(logits)
    if finite.all():
        return np.ones(len(logits), dtype=bool)
    valid = np.asarray(finite.all(axis=1))
    if invalid == "error":
        row = int(valid.argmin())
        column = int(finite[row].argmin())
        raise ToodError(
            f"{os.fspath(path)}: row {start + row}, column {column}: expected a finite number, found "
            f"{logits[row, column]}; `--invalid reject` continues without such rows"
        )
    return valid

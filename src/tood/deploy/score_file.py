"""Score a file of logits of any length in one pass and constant memory; the output is complete or absent."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias, get_args

import numpy as np
import numpy.typing as npt

from tood.arrays import FloatArray
from tood.calibration import TOOD
from tood.calibration.checks import check_scale
from tood.decision import KIND as CONFORMAL
from tood.decision import Conformal, score_and_assign
from tood.decision.facts import description
from tood.decision.ranks import check_share
from tood.deploy.logit_files import SUFFIXES, Block, Invalid, LogitsFile, valid_rows
from tood.errors import MissingDependencyError, ToodError, UnknownNameError
from tood.partition import Partition
from tood.storage.files import csv_cell, kind_of, write_atomically

__all__ = ["Scored", "load_scorer", "score_file"]

WRITTEN = (".parquet", ".csv")
OTHER_FORMATS = {*SUFFIXES, ".json", ".jsonl", ".safetensors", ".tsv", ".txt", ".xlsx"} - {*WRITTEN}
PART = 1 << 17  # rows written at once: a row group of a Parquet file
MOST = 100_000  # scores that quantiles are taken from: all up to twice as many, else every second, every fourth, …
POINTS = 200  # equal parts of the distribution of scores that a summary keeps
QUANTILES = (0.01, 0.05, 0.25, 0.5, 0.75, 0.95, 0.99)  # multiples of 1 / POINTS
Columns: TypeAlias = dict[str, Any]
PathLike: TypeAlias = "str | os.PathLike[str]"


@dataclass
class Scored:
    """Summary of a scored file, or of several.

    ``tasks`` and ``rejected_tasks`` count rows per winning task. ``rejected`` counts every row that is not accepted,
    invalid rows included, and is ``None`` when nothing was decided. ``points`` are the quantiles of the scores at
    0, 1/200, …, 1, from 100,000 rows or more at even distances. ``earlier``: how many of the files an earlier call
    scored.
    """

    rows: int
    invalid: int
    rejected: int | None
    tasks: list[int]
    rejected_tasks: list[int] | None
    points: list[float]
    earlier: int = 0

    @property
    def quantiles(self) -> dict[str, float]:
        """Score quantiles by share; empty without a valid row."""
        return {f"{q:g}": self.points[round(q * POINTS)] for q in QUANTILES} if self.points else {}

    def to_dict(self) -> dict[str, Any]:
        """The summary without ``points``, with quantiles, ready for JSON."""
        shown = {name: value for name, value in vars(self).items() if name != "points"}
        return {**shown, "quantiles": self.quantiles}

    @classmethod
    def total(cls, parts: Sequence[Scored]) -> Scored:
        """Summary of several files together."""
        if len(parts) == 1:
            return parts[0]
        decided = all(part.rejected is not None for part in parts)
        valid = [part for part in parts if part.points]
        return cls(
            sum(part.rows for part in parts),
            sum(part.invalid for part in parts),
            sum(part.rejected or 0 for part in parts) if decided else None,
            _sums([part.tasks for part in parts]),
            _sums([part.rejected_tasks or [] for part in parts]) if decided else None,
            _mixed([part.points for part in valid], [part.rows - part.invalid for part in valid]),
            sum(part.earlier for part in parts),
        )


def _sums(counts: list[list[int]]) -> list[int]:
    return [sum(column) for column in zip(*counts, strict=True)]


def _mixed(points: list[list[float]], counts: list[int]) -> list[float]:
    """Quantiles of all rows from those of each file; each point represents the rows up to halfway to the next."""
    if not points:
        return []
    share = np.full(POINTS + 1, 1 / POINTS)
    share[[0, -1]] /= 2
    values, weights = np.concatenate(points), np.outer(counts, share).ravel()
    order = np.argsort(values, kind="stable")
    middles = np.cumsum(weights[order]) - weights[order] / 2
    result: list[float] = np.interp(
        np.linspace(0, middles[-1] + weights[order[-1]] / 2, POINTS + 1), middles, values[order]
    ).tolist()
    return result


def score_file(
    calibrator: PathLike,
    source: PathLike,
    target: PathLike,
    alpha: float | None = None,
    risk: float | None = None,
    invalid: Invalid = "error",
    keep: tuple[str, ...] = (),
    progress: Callable[[int, int | None], object] = lambda done, rows: None,
) -> Scored:
    """Score every row of ``source`` and write ``target``, a Parquet or CSV file with one row per input row.

    Parameters
    ----------
    calibrator:
        A file that :meth:`TOOD.save <tood.TOOD.save>` or :meth:`Conformal.save <tood.decision.Conformal.save>` wrote.
    source:
        A file of logits in any format of :mod:`tood.deploy.logit_files`.
    target:
        The file to make or replace: CSV if its name ends in .csv, else Parquet. Columns: those of ``keep``, score
        (float32, or float64 for float64 logits), task (int32, the winning one), with ``alpha`` p_value (float64) and
        accept (bool), with ``risk`` accept.
    alpha:
        The share of in-distribution rows that may be rejected; needs a file of :class:`~tood.decision.Conformal`.
    risk:
        The error rate allowed among accepted rows, in place of ``alpha``: see
        :meth:`~tood.decision.Conformal.risk_threshold`.
    invalid:
        What to do with a row that has a missing, NaN or infinite logit: ``"error"``, or ``"reject"``, which gives it
        a null score and accept = false.
    keep:
        Names of input columns to copy to the output.
    progress:
        Called from time to time with the number of rows done and their total, ``None`` if unknown.
    """
    try:
        import pyarrow as pa
    except ImportError as error:
        raise MissingDependencyError("pyarrow", "report", "writing scores") from error
    target = Path(target)
    if target.resolve() in (Path(source).resolve(), Path(calibrator).resolve()):
        raise ToodError(f"{target}: is an input; the output would overwrite it")
    suffix = target.suffix.lower()
    if suffix in OTHER_FORMATS:
        raise ToodError(
            f"{target}: scores are written as Parquet or CSV; expected a name such as {target.stem}.parquet or "
            f"{target.stem}.csv"
        )
    job = _Job(Path(calibrator), LogitsFile(source, keep), alpha, risk, invalid)
    try:
        write_atomically(target, lambda temporary: job.write(temporary, suffix == ".csv", progress))
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:  # the other columns can be written
        raise ToodError(f"keep: {', '.join(keep)}: cannot be written to {target} ({error})") from error
    return job.summary()


def load_scorer(path: PathLike) -> TOOD | Conformal:
    """Load a calibrator, or a :class:`~tood.decision.Conformal` around one."""
    if kind_of(path) != CONFORMAL:
        return TOOD.load(path)
    conformal = Conformal.load(path)
    if not isinstance(conformal.cal, TOOD):
        raise ToodError(f"{os.fspath(path)}: expected a calibrator of logits, found {type(conformal.cal).__name__}")
    return conformal


class _Part(NamedTuple):
    """What is known of consecutive rows; ``[rows]`` each."""

    kept: Columns
    scored: Columns
    valid: npt.NDArray[np.bool_]


class _Job:
    """The scorer, its settings, and the counts of the summary."""

    def __init__(
        self, calibrator: Path, file: LogitsFile, alpha: float | None, risk: float | None, invalid: Invalid
    ) -> None:
        if invalid not in get_args(Invalid):
            raise UnknownNameError("invalid", invalid, get_args(Invalid))
        if alpha is not None and risk is not None:
            raise ToodError("alpha and risk: expected one of them, found both")
        model = load_scorer(calibrator)
        self.conformal = model if isinstance(model, Conformal) else Conformal(model)
        if alpha is not None:
            check_share("alpha", alpha)
        if (alpha or risk) and model is not self.conformal:
            raise ToodError(
                f"{calibrator}: a decision needs calibration scores, and this file has none; make one with "
                "`tood calibrate --holdout 0.5`"
            )
        self.limit = None if risk is None else self.conformal.risk_threshold(risk)
        self.file, self.alpha, self.invalid = file, alpha, invalid
        for name in file.keep:
            if name in ("score", "task", "p_value", "accept"):
                raise ToodError(f"keep: {name!r} is a column of the output itself; rename the input's")
        # Taken from the calibrator: all rows are checked here, so `score` need not check some.
        self.seen: Any = vars(self.conformal.cal).pop("seen_", None)
        self.description = description(self.conformal)
        self.rng = np.random.default_rng(self.conformal.seed)
        partition = Partition(self.conformal.cal.tasks)
        self.columns = partition.columns
        self.won, self.lost = np.zeros((2, len(partition)), dtype=np.int64)
        self.rows = self.invalid_rows = 0
        self.as_csv = False
        self.scores, self.every = np.empty(0), 1  # every so many rows

    @property
    def decides(self) -> bool:
        return self.alpha is not None or self.limit is not None

    def write(self, path: Path, as_csv: bool, progress: Callable[[int, int | None], object]) -> None:
        """Write the file. A second thread writes a part while the next one is scored."""
        self.as_csv = as_csv
        total, done = self.file.rows, 0
        parts = self._parts()
        first = next(parts)
        with _writer(path, first.schema, as_csv) as writer, ThreadPoolExecutor(1) as thread:

            def put(part: Any) -> int:
                writer.write_batch(part)  # a row group of a Parquet file
                return len(part)

            waiting: Future[int] = thread.submit(put, first)
            for part in parts:
                done += waiting.result()
                waiting = thread.submit(put, part)
                progress(done, None if total is None else max(done, total))
            done += waiting.result()
            progress(done, done)

    def summary(self) -> Scored:
        """Counts and score quantiles of all rows."""
        points = np.quantile(self.scores, np.arange(POINTS + 1) / POINTS).tolist() if len(self.scores) else []
        lost = self.lost.tolist() if self.decides else None
        rejected = None if lost is None else sum(lost) + self.invalid_rows
        return Scored(self.rows, self.invalid_rows, rejected, self.won.tolist(), lost, points)

    def _parts(self) -> Iterator[Any]:
        """Yield record batches of ``PART`` rows or a little more; one without rows for an empty file."""
        held: list[_Part] = []
        count = 0
        for block in self.file.blocks():
            held.append(self._score(block))
            count += len(block.logits)
            if count >= PART:
                yield self._batch(held)
                held, count = [], 0
        if held or not self.rows:
            nothing = Block(np.empty((0, self.columns), dtype=np.float32), {name: [] for name in self.file.keep})
            yield self._batch(held or [self._score(nothing)])

    def _batch(self, blocks: list[_Part]) -> Any:
        """The columns of several blocks as one record batch, counted in the summary."""
        import pyarrow as pa

        kept = {name: _joined([block.kept[name] for block in blocks]) for name in self.file.keep}
        if self.as_csv:
            kept = {name: _cells(column) for name, column in kept.items()}
        columns = {name: np.concatenate([block.scored[name] for block in blocks]) for name in blocks[0].scored}
        valid = np.concatenate([block.valid for block in blocks])
        all_valid = bool(valid.all())
        counted: Any = slice(None) if all_valid else valid
        tasks = columns["task"][counted]
        self.won += np.bincount(tasks, minlength=len(self.won))
        if self.decides:
            self.lost += np.bincount(tasks[~columns["accept"][counted]], minlength=len(self.lost))
        self.scores = np.append(self.scores, columns["score"][counted][:: self.every])
        while len(self.scores) > 2 * MOST:
            self.scores, self.every = self.scores[::2], 2 * self.every
        self.invalid_rows += len(valid) - len(tasks)
        nulls = None if all_valid else pa.py_buffer(np.packbits(valid, bitorder="little"))
        arrays = [*kept.values()]
        arrays += [_arrow(values, None if name == "accept" else nulls) for name, values in columns.items()]
        fields = [
            pa.field(name, array.type, nullable=name in kept or (name != "accept" and self.invalid == "reject"))
            for name, array in zip([*kept, *columns], arrays, strict=True)
        ]
        kept_texts = {f"tood.{name}": text for name, text in self.description.items()}
        return pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields, metadata=kept_texts))

    def _score(self, block: Block) -> _Part:
        """The output columns of one block, and which of its rows are valid."""
        logits, start = block.logits, self.rows
        self.rows += len(logits)
        # Minimum and maximum show in one pass whether further checks are needed; mostly they are not.
        low, high = (logits.min(), logits.max()) if logits.size else (0, 0)
        all_valid = bool(np.isfinite(low) and np.isfinite(high))
        valid = np.ones(len(logits), dtype=bool)
        if not all_valid:
            valid = valid_rows(logits, self.invalid, self.file.path, start)
        known = logits if all_valid else logits[valid]
        try:
            if self._unusual(low, high) and len(known):
                check_scale(known, self.seen, rows=None)
            scored = self._decide(known)
            if not all_valid:
                scored = {name: _spread(values, valid) for name, values in scored.items()}
        except ToodError as error:
            raise ToodError(f"{self.file.path}, rows {start} to {self.rows - 1}: {error}") from error
        return _Part(block.columns, scored, valid)

    def _unusual(self, low: float, high: float) -> bool:
        """Whether a block's extremes look like probabilities, lie far outside the calibrated range, or are NaN."""
        if self.seen is None:
            return False
        if not np.isfinite(low + high):
            return True
        slack = (self.seen.range[1] - self.seen.range[0]) / 2
        return bool((low >= 0 and high <= 1) or low < self.seen.range[0] - slack or high > self.seen.range[1] + slack)

    def _decide(self, logits: FloatArray) -> Columns:
        """Score, winning task and, if asked for, p-value and decision of valid rows."""
        if self.alpha is not None:
            decision = self.conformal.decide(logits, alpha=self.alpha, rng=self.rng)
            task = decision.task.astype(np.int32)
            return {"score": decision.score, "task": task, "p_value": decision.p_value, "accept": decision.accept}
        scores, tasks = score_and_assign(self.conformal.cal, logits)
        columns = {"score": scores, "task": np.asarray(tasks, dtype=np.int32)}
        return columns if self.limit is None else {**columns, "accept": scores >= self.limit}


def _joined(pieces: list[Any]) -> Any:
    """Pieces of a kept column, NumPy or Arrow, as one Arrow array."""
    import pyarrow as pa

    return pa.concat_arrays([_copied(piece) if isinstance(piece, pa.Array) else pa.array(piece) for piece in pieces])


def _cells(column: Any) -> Any:
    """A column for a CSV file: text as tables have it (:func:`~tood.storage.files.csv_cell`)."""
    import pyarrow as pa

    if pa.types.is_primitive(column.type):
        return column
    return pa.array(map(csv_cell, column.cast(pa.large_string()).to_pylist()), pa.large_string())


def _copied(array: Any) -> Any:
    """An Arrow array without string views, which polars writes and writers of other files do not know."""
    import pyarrow as pa

    if pa.types.is_dictionary(array.type) and pa.types.is_string_view(array.type.value_type):
        return array.dictionary.cast(pa.large_string()).take(array.indices)
    return array.cast(pa.large_string()) if pa.types.is_string_view(array.type) else array


def _writer(path: Path, schema: Any, as_csv: bool) -> Any:
    """A writer of record batches; numbers in a CSV file have as many digits as it takes to read the same number."""
    if as_csv:
        from pyarrow.csv import CSVWriter

        return CSVWriter(path, schema)
    from pyarrow.parquet import ParquetWriter

    # Not encoded: a dictionary or a codec would take longer than the scores and save little.
    return ParquetWriter(path, schema, compression="NONE", use_dictionary=False, write_statistics=["score"])


def _spread(values: npt.NDArray[Any], valid: npt.NDArray[np.bool_]) -> npt.NDArray[Any]:
    """``values`` of the valid rows, with 0 or False in place of the others."""
    out = np.zeros(len(valid), dtype=values.dtype)
    out[valid] = values
    return out


def _arrow(values: npt.NDArray[Any], nulls: Any) -> Any:
    """``values`` as an Arrow array.

    ``pyarrow.array`` would import pandas, if that is installed, which takes longer than scoring a million rows
    (``benchmarks/score_stream.py``).
    """
    import pyarrow as pa

    kind = pa.from_numpy_dtype(values.dtype)
    data = np.packbits(values, bitorder="little") if values.dtype == np.bool_ else values
    return pa.Array.from_buffers(kind, len(values), [nulls, pa.py_buffer(data)])

"""Score a file of logits of any length in one pass and constant memory; the output is complete or absent."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias, get_args

import numpy as np
import numpy.typing as npt

from tood.calibration.checks import check_scale
from tood.decision import Conformal, PredictionSets, score_and_assign
from tood.decision.facts import description, load_decision
from tood.decision.ranks import check_share
from tood.deploy.logit_files import SUFFIXES, Block, Invalid, LogitsFile, valid_rows
from tood.energy import check_columns
from tood.errors import MissingDependencyError, ToodError, UnknownNameError
from tood.partition import Partition
from tood.storage.files import csv_cell, write_atomically

__all__ = ["Scored", "score_file"]

WRITTEN = (".parquet", ".csv")
OTHER_FORMATS = {*SUFFIXES, ".json", ".jsonl", ".safetensors", ".tsv", ".txt", ".xlsx"} - {*WRITTEN}
PART = 1 << 17  # rows written at once: a row group of a Parquet file
MOST = 100_000  # scores that quantiles are taken from: all up to twice as many, else every second, every fourth, …
QUANTILES = (0.01, 0.05, 0.25, 0.5, 0.75, 0.95, 0.99)
OUTPUT = ("score", "task", "p_value", "set", "accept")
Columns: TypeAlias = dict[str, Any]
PathLike: TypeAlias = "str | os.PathLike[str]"


@dataclass
class Scored:
    """Summary of a scored file, or of several.

    ``tasks`` and ``rejected_tasks`` count rows per winning task; they are empty if the score has none. ``rejected``
    counts every row that is not accepted, invalid rows included, and is ``None`` when nothing was decided.
    ``quantiles`` of the scores by share are of one file. ``earlier``: how many of the files an earlier call scored.
    """

    rows: int
    invalid: int
    rejected: int | None
    tasks: list[int]
    rejected_tasks: list[int] | None
    quantiles: dict[str, float] = field(default_factory=dict)
    earlier: int = 0

    @classmethod
    def total(cls, parts: Sequence[Scored]) -> Scored:
        """Summary of several files together."""
        if len(parts) == 1:
            return parts[0]
        decided = all(part.rejected is not None for part in parts)
        won, lost = (
            [sum(counts) for counts in zip(*(getattr(part, name) or () for part in parts), strict=True)]
            for name in ("tasks", "rejected_tasks")
        )
        rows, invalid, earlier = (sum(getattr(part, name) for part in parts) for name in ("rows", "invalid", "earlier"))
        rejected = sum(part.rejected or 0 for part in parts) if decided else None
        return cls(rows, invalid, rejected, won, lost if decided else None, {}, earlier)


def score_file(
    calibrator: PathLike,
    source: PathLike,
    target: PathLike,
    alpha: float | None = None,
    risk: float | None = None,
    invalid: Invalid = "error",
    keep: tuple[str, ...] = (),
    progress: Callable[[int, int | None], object] = lambda done, rows: None,
    made_from: str = "",
) -> Scored:
    """Score every row of ``source`` and write ``target``, a Parquet or CSV file with one row per input row.

    Parameters
    ----------
    calibrator:
        A file that ``save`` of :class:`~tood.TOOD`, :class:`~tood.decision.Conformal`,
        :class:`~tood.decision.PredictionSets` or a detector wrote. A detector of features reads the array or column
        ``features`` of the source.
    source:
        A file of logits in any format of :mod:`tood.deploy.logit_files`.
    target:
        The file to make or replace: CSV if its name ends in .csv, else Parquet. Columns: those of ``keep``, score
        (float32, or float64 for float64 logits), task (int32, the winning one, if the score has one), with ``alpha``
        p_value (float64), or set (list of int32, Parquet only) of prediction sets, and accept (bool), with ``risk``
        accept.
    alpha:
        The share of in-distribution rows that may be rejected; needs a file of :class:`~tood.decision.Conformal`. Of
        prediction sets: the share of rows whose true class may be missing.
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
    made_from:
        A text to keep in a Parquet file, beside the summary.
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
    scorer = _Scorer(Path(calibrator), Path(source), keep, alpha, risk, invalid)
    if suffix == ".csv" and isinstance(scorer.model, PredictionSets):
        raise ToodError(f"{target}: a column of sets cannot be written as CSV; expected {target.stem}.parquet")
    summary = _Summary(scorer)
    try:
        write_atomically(target, lambda file: _write(scorer, summary, file, suffix == ".csv", progress, made_from))
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:  # the other columns can be written
        raise ToodError(f"keep: {', '.join(keep)}: cannot be written to {target} ({error})") from error
    return summary.scored()


class _Part(NamedTuple):
    """Some rows: the columns to copy, those of the output for the valid rows, and which rows are valid."""

    kept: Columns
    scored: Columns
    valid: npt.NDArray[np.bool_]


class _Scorer:
    """What turns blocks of a file into columns of the output."""

    def __init__(
        self,
        calibrator: Path,
        source: Path,
        keep: tuple[str, ...],
        alpha: float | None,
        risk: float | None,
        invalid: Invalid,
    ) -> None:
        if invalid not in get_args(Invalid):
            raise UnknownNameError("invalid", invalid, get_args(Invalid))
        if alpha is not None and risk is not None:
            raise ToodError("alpha and risk: expected one of them, found both")
        if alpha is not None:
            check_share("alpha", alpha)
        self.model = load_decision(calibrator)
        self.cal: Any = getattr(self.model, "cal", self.model)
        decides = isinstance(self.model, Conformal) or (isinstance(self.model, PredictionSets) and not risk)
        if (alpha or risk) and not decides:
            raise ToodError(
                f"{calibrator}: a decision needs calibration scores, and this file has none; make one with "
                "`tood calibrate --holdout 0.5`"
            )
        self.limit = None if risk is None else self.model.risk_threshold(risk)
        self.alpha, self.invalid = alpha, invalid
        if taken := [name for name in keep if name in OUTPUT]:
            raise ToodError(f"keep: {taken[0]!r} is a column of the output itself; rename the input's")
        self.is_detector = hasattr(self.cal, "needs")
        self.file = LogitsFile(source, keep, features=self.is_detector)
        # Taken from the calibrator: blocks are checked here, most of them by their extremes alone.
        self.seen: Any = vars(self.cal).pop("seen_", None)
        self.rng = np.random.default_rng(getattr(self.model, "seed", 0))
        self.partition = None if self.is_detector else Partition(self.cal.tasks)
        self.rows = 0

    def parts(self) -> Iterator[list[_Part]]:
        """Yield blocks of ``PART`` rows or a little more; one without rows for an empty file."""
        held: list[_Part] = []
        for block in self.file.blocks():
            held.append(self._score(block))
            if sum(len(part.valid) for part in held) >= PART:
                yield held
                held = []
        if held or not self.rows:
            columns = 1 if self.partition is None else self.partition.columns
            nothing = Block(np.empty((0, columns), dtype=np.float32), {name: [] for name in self.file.keep})
            yield held or [self._score(nothing)]

    def _score(self, block: Block) -> _Part:
        logits, start = block.logits, self.rows
        self.rows += len(logits)
        # Minimum and maximum show in one pass whether further checks are needed; mostly they are not.
        low, high = (logits.min(), logits.max()) if logits.size else (0, 0)
        valid = np.ones(len(logits), dtype=bool)
        if not (np.isfinite(low) and np.isfinite(high)):
            valid = valid_rows(logits, self.invalid, self.file.path, start)
        chosen: Any = slice(None) if valid.all() else valid
        known = logits[chosen]
        try:
            if self.partition is not None:
                check_columns(known, self.partition)
            if len(known) and self.seen is not None and (start == 0 or self._unusual(low, high)):
                check_scale(known, self.seen, rows=None)
            detects = len(logits) or not self.is_detector
            scored = self._decide(block.rows(chosen, self.is_detector)) if detects else {"score": np.empty(0)}
        except ToodError as error:
            raise ToodError(f"{self.file.path}, rows {start} to {self.rows - 1}: {error}") from error
        return _Part({name: block.columns[name] for name in self.file.keep}, scored, valid)

    def _unusual(self, low: float, high: float) -> bool:
        """Whether a block's extremes look like probabilities, lie far outside the calibrated range, or are NaN."""
        lowest, highest = self.seen.range
        slack = (highest - lowest) / 2
        return not (lowest - slack <= low and high <= highest + slack) or bool(low >= 0 and high <= 1)

    def _decide(self, rows: Any) -> Columns:
        """Score, winning task and, if asked for, p-value or set, and decision of valid rows."""
        columns: Columns = {}
        if self.alpha is not None and isinstance(self.model, Conformal):
            decision = self.model.decide(rows, alpha=self.alpha, rng=self.rng)
            scores, tasks = decision.score, decision.task
            columns = {"p_value": decision.p_value, "accept": decision.accept}
        else:
            scores, tasks = score_and_assign(self.cal, rows)
            if self.alpha is not None:
                sets = self.model.predict(rows, self.alpha)
                columns = {"set": sets, "accept": sets.any(axis=1)}
            elif self.limit is not None:
                columns = {"accept": scores >= self.limit}
        named: Columns = {} if tasks is None else {"task": np.asarray(tasks, dtype=np.int32)}
        return {"score": scores, **named, **columns}


class _Summary:
    """Counts and scores of the rows written."""

    def __init__(self, scorer: _Scorer) -> None:
        self.decides = scorer.alpha is not None or scorer.limit is not None
        self.rows = self.valid = self.accepted = 0
        self.won, self.lost = np.zeros((2, len(scorer.partition or ())), dtype=np.int64)
        self.scores, self.every = np.empty(0), 1  # every so many rows

    def add(self, columns: Columns, valid: npt.NDArray[np.bool_]) -> None:
        """Count the rows of a part; ``columns`` are of its valid rows."""
        self.rows += len(valid)
        self.valid += len(columns["score"])
        accept = columns.get("accept", np.ones(len(columns["score"]), dtype=bool))
        self.accepted += int(accept.sum())
        if "task" in columns:
            self.won += np.bincount(columns["task"], minlength=len(self.won))
            self.lost += np.bincount(columns["task"][~accept], minlength=len(self.lost))
        self.scores = np.append(self.scores, columns["score"][:: self.every])
        while len(self.scores) > 2 * MOST:
            self.scores, self.every = self.scores[::2], 2 * self.every

    def scored(self) -> Scored:
        values = np.quantile(self.scores, QUANTILES).tolist() if len(self.scores) else []
        quantiles = {f"{share:g}": value for share, value in zip(QUANTILES, values, strict=False)}
        rejected, lost = (self.rows - self.accepted, self.lost.tolist()) if self.decides else (None, None)
        return Scored(self.rows, self.rows - self.valid, rejected, self.won.tolist(), lost, quantiles)


def _write(
    scorer: _Scorer,
    summary: _Summary,
    path: Path,
    as_csv: bool,
    progress: Callable[[int, int | None], object],
    made_from: str,
) -> None:
    """Write the file. A second thread writes a part while the next one is scored."""
    texts = {f"tood.{name}": text for name, text in description(scorer.cal).items()}
    batches = (_batch(parts, summary, scorer, texts, as_csv) for parts in scorer.parts())
    total, done, first = scorer.file.rows, 0, next(batches)
    with _writer(path, first.schema, as_csv) as writer, ThreadPoolExecutor(1) as thread:

        def put(batch: Any) -> int:
            writer.write_batch(batch)  # a row group of a Parquet file
            return len(batch)

        waiting: Future[int] = thread.submit(put, first)
        for batch in batches:
            done += waiting.result()
            waiting = thread.submit(put, batch)
            progress(done, None if total is None else max(done, total))
        done += waiting.result()
        progress(done, done)
        if made_from and not as_csv:
            kept = json.dumps(vars(summary.scored()))
            writer.add_key_value_metadata({"tood.made_from": made_from, "tood.summary": kept})


def _batch(parts: list[_Part], summary: _Summary, scorer: _Scorer, texts: dict[str, str], as_csv: bool) -> Any:
    """The columns of several parts as one record batch, counted in the summary."""
    import pyarrow as pa

    valid = np.concatenate([part.valid for part in parts])
    scored = {name: np.concatenate([part.scored[name] for part in parts]) for name in parts[0].scored}
    summary.add(scored, valid)
    columns = {name: _joined([part.kept[name] for part in parts]) for name in scorer.file.keep}
    if as_csv:
        columns = {name: _cells(column) for name, column in columns.items()}
    nullable = dict.fromkeys(columns, True)
    for name, values in scored.items():
        nullable[name] = name != "accept" and scorer.invalid == "reject"
        columns[name] = _lists(values, valid) if values.ndim == 2 else _arrow(values, valid, name != "accept")
    fields = [pa.field(name, array.type, nullable=nullable[name]) for name, array in columns.items()]
    return pa.RecordBatch.from_arrays([*columns.values()], schema=pa.schema(fields, metadata=texts))


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


def _lists(sets: npt.NDArray[np.bool_], valid: npt.NDArray[np.bool_]) -> Any:
    """Rows of bools as lists of the columns that are true; null if a row is not valid."""
    import pyarrow as pa

    sizes = np.zeros(len(valid), dtype=np.int64)
    sizes[valid] = sets.sum(axis=1)
    offsets = pa.array(np.append(0, np.cumsum(sizes)), pa.int32())
    return pa.ListArray.from_arrays(offsets, pa.array(np.nonzero(sets)[1], pa.int32()), mask=pa.array(~valid))


def _arrow(values: npt.NDArray[Any], valid: npt.NDArray[np.bool_], null: bool) -> Any:
    """Values of the valid rows as an Arrow array; the others are null, or else False.

    ``pyarrow.array`` would import pandas, if that is installed, which takes longer than scoring a million rows
    (``benchmarks/score_stream.py``).
    """
    import pyarrow as pa

    nulls, data = None, values
    if len(values) < len(valid):
        data = np.zeros(len(valid), dtype=values.dtype)
        data[valid] = values
        nulls = pa.py_buffer(np.packbits(valid, bitorder="little")) if null else None
    packed = np.packbits(data, bitorder="little") if data.dtype == np.bool_ else data
    return pa.Array.from_buffers(pa.from_numpy_dtype(data.dtype), len(data), [nulls, pa.py_buffer(packed)])

"""Score a file of logits of any length in one pass and constant memory; the output is complete or absent."""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, TypeAlias, get_args

import numpy as np
import numpy.typing as npt

from tood.decision import Conformal, PredictionSets, score_and_assign
from tood.decision.facts import description, load_decision
from tood.decision.ranks import check_share
from tood.deploy.logit_files import Block, Invalid, LogitsFile, valid_rows
from tood.errors import MissingDependencyError, ToodError, UnknownNameError, located
from tood.partition import Partition
from tood.storage.files import csv_cell, write_atomically

__all__ = ["Scored", "score_file"]

WRITTEN = (".parquet", ".csv")
PART = 1 << 17  # rows written at once: a row group of a Parquet file
OUTPUT = ("score", "task", "p_value", "set", "accept")
Columns: TypeAlias = dict[str, npt.NDArray[Any]]
PathLike: TypeAlias = "str | os.PathLike[str]"


@dataclass
class Scored:
    """Summary of scored rows.

    ``tasks`` and ``rejected_tasks`` count rows per winning task; they are empty if the score has none. ``rejected``
    counts every row that is not accepted, invalid rows included, and is ``None`` when nothing was decided.
    ``earlier``: how many of several files an earlier call scored.
    """

    rows: int
    invalid: int
    rejected: int | None
    tasks: list[int]
    rejected_tasks: list[int] | None
    earlier: int = 0

    @classmethod
    def total(cls, parts: Sequence[Scored]) -> Scored:
        """Summary of several together, which the same calibrator scored."""

        def added(name: str) -> Any:
            values = [getattr(part, name) for part in parts]
            return None if values[0] is None else np.sum(values, axis=0, dtype=np.int64).tolist()

        return cls(**{field.name: added(field.name) for field in fields(cls)})


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
        The file to make or replace, .parquet or .csv. Columns: those of ``keep``, score
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
    if target.suffix.lower() not in WRITTEN:
        raise ToodError(
            f"{target}: scores are written as Parquet or CSV; expected a name such as {target.stem}.parquet or "
            f"{target.stem}.csv"
        )
    scorer = _Scorer(Path(calibrator), Path(source), keep, alpha, risk, invalid)
    try:
        write_atomically(
            target, lambda file: _write(scorer, file, target.suffix.lower() == ".csv", progress, made_from)
        )
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise ToodError(f"{target}: a column cannot be written in this format ({error})") from error
    return scorer.summary


class _Scorer:
    """What turns blocks of a file into columns of the output, and counts them."""

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
        if taken := [name for name in keep if name in OUTPUT]:
            raise ToodError(f"keep: {taken[0]!r} is a column of the output itself; rename the input's")
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
        self.is_detector = hasattr(self.cal, "needs")
        self.file = LogitsFile(source, keep, features=self.is_detector)
        partition = None if self.is_detector else Partition(self.cal.tasks)
        self.columns, none = (1, []) if partition is None else (partition.columns, [0] * len(partition))
        self.summary = Scored(0, 0, None, none, None) if alpha is risk is None else Scored(0, 0, 0, none, none)

    def batches(self, as_csv: bool) -> Iterator[Any]:
        """Yield an Arrow record batch per block; one without rows for an empty file."""
        import pyarrow as pa

        blocks = self.file.blocks()
        nothing = Block(np.empty((0, self.columns), np.float32), {name: pa.nulls(0) for name in self.file.keep})
        for block in itertools.chain([next(blocks, nothing)], blocks):
            start, stop = self.summary.rows, self.summary.rows + len(block.logits)
            valid = valid_rows(block.logits, self.invalid, self.file.path, start)
            with located(f"{self.file.path}, rows {start} to {stop - 1}"):
                outputs = block.outputs if valid.all() else block.outputs[valid]
                if self.is_detector:
                    scored = self._decide(outputs) if len(valid) else {"score": np.empty(0)}
                else:
                    scored = self._decide(outputs.logits)
            self.summary = Scored.total([self.summary, self._count(scored, valid)])
            columns = {name: _kept(block.columns[name], as_csv) for name in self.file.keep}
            columns |= {name: _arrow(values, valid, null=name != "accept") for name, values in scored.items()}
            yield pa.RecordBatch.from_arrays([*columns.values()], names=[*columns])

    def _decide(self, rows: Any) -> Columns:
        """Score, winning task and, if asked for, p-value or set, and decision of valid rows."""
        columns: Columns = {}
        if self.alpha is not None and isinstance(self.model, Conformal):
            decision = self.model.decide(rows, alpha=self.alpha)
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

    def _count(self, scored: Columns, valid: npt.NDArray[np.bool_]) -> Scored:
        decided, count = "accept" in scored, len(self.summary.tasks)
        accept = scored.get("accept", np.ones(len(scored["score"]), dtype=bool))
        tasks = scored.get("task", np.empty(0, dtype=np.int32))
        lost = np.bincount(tasks[~accept[: len(tasks)]], minlength=count).tolist() if decided else None
        rejected = len(valid) - int(accept.sum()) if decided else None
        won = np.bincount(tasks, minlength=count).tolist()
        return Scored(len(valid), int((~valid).sum()), rejected, won, lost)


def _write(
    scorer: _Scorer, path: Path, as_csv: bool, progress: Callable[[int, int | None], object], made_from: str
) -> None:
    import pyarrow as pa

    batches, total = scorer.batches(as_csv), scorer.file.rows
    first = next(batches)
    texts = {f"tood.{name}": text for name, text in description(scorer.cal).items()}
    with _writer(path, first.schema.with_metadata(texts), as_csv) as writer:
        held: list[Any] = []
        for batch in itertools.chain([first], batches):
            held.append(batch)
            if sum(map(len, held)) >= PART:
                writer.write_table(pa.Table.from_batches(held).replace_schema_metadata(texts))
                held = []
                progress(scorer.summary.rows, total)
        writer.write_table(pa.Table.from_batches(held, first.schema).replace_schema_metadata(texts))
        progress(scorer.summary.rows, scorer.summary.rows)
        if made_from and not as_csv:
            kept = json.dumps(vars(scorer.summary))
            writer.add_key_value_metadata({"tood.made_from": made_from, "tood.summary": kept})


def _writer(path: Path, schema: Any, as_csv: bool) -> Any:
    """A writer of tables; numbers in a CSV file have as many digits as it takes to read the same number."""
    if as_csv:
        from pyarrow.csv import CSVWriter

        return CSVWriter(path, schema)
    from pyarrow.parquet import ParquetWriter

    # Not encoded: a dictionary or a codec would take longer than the scores and save little.
    return ParquetWriter(path, schema, compression="NONE", use_dictionary=False, write_statistics=["score"])


def _kept(column: Any, as_csv: bool) -> Any:
    """A column to copy as an Arrow array; for a CSV file, text as tables have it, :func:`csv_cell`."""
    import pyarrow as pa

    array = column if isinstance(column, pa.Array) else pa.array(column)
    if not as_csv or pa.types.is_primitive(array.type):
        return array
    return pa.array(map(csv_cell, array.cast(pa.large_string()).to_pylist()), pa.large_string())


def _arrow(values: npt.NDArray[Any], valid: npt.NDArray[np.bool_], null: bool) -> Any:
    """Values of the valid rows as an Arrow array, sets as lists of columns; the others are null, or else False.

    ``pyarrow.array`` would import pandas, if that is installed, which takes longer than scoring a million rows
    (``benchmarks/score_stream.py``).
    """
    import pyarrow as pa

    data = np.zeros((len(valid), *values.shape[1:]), dtype=values.dtype)
    data[valid] = values
    if data.ndim == 2:
        offsets = pa.array(np.append(0, np.cumsum(data.sum(axis=1))), pa.int32())
        return pa.ListArray.from_arrays(offsets, pa.array(np.nonzero(data)[1], pa.int32()), mask=pa.array(~valid))
    nulls = pa.py_buffer(np.packbits(valid, bitorder="little")) if null else None
    packed = np.packbits(data, bitorder="little") if data.dtype == np.bool_ else data
    return pa.Array.from_buffers(pa.from_numpy_dtype(data.dtype), len(data), [nulls, pa.py_buffer(packed)])

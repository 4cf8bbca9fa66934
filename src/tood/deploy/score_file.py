"""Score a file of logits of any length: constant memory, atomic output, and a killed run goes on where it was.

Rows are scored in parts of fixed size. Each is appended to ``OUT.partial`` once it is complete, and becomes a row group
of a Parquet file that takes the place of ``OUT`` when all are there; a second thread writes both while the next part is
scored. A Parquet file without its footer cannot be gone on with, ``OUT.partial`` can. Its first line says what it was
made from, so that a part never meets another calibrator, input or setting.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from tood.calibration import TOOD
from tood.decision import KIND as CONFORMAL
from tood.decision import Conformal, score_and_assign
from tood.deploy.logit_files import LogitsFile
from tood.errors import MissingDependencyError, ToodError
from tood.files import kind_of, write_atomically
from tood.partition import Partition
from tood.ranks import check_share

__all__ = ["Scored", "load_scorer", "score_file"]

OTHER_FORMATS = (".csv", ".json", ".npy", ".npz", ".safetensors", ".txt")
PART = 1 << 18  # rows: what a row group of the output holds, and the most that a killed run does again
Columns: TypeAlias = dict[str, npt.NDArray[Any]]
PathLike: TypeAlias = "str | os.PathLike[str]"


class Scored(NamedTuple):
    """How many rows the output has, and how many of them an earlier, killed run had left."""

    rows: int
    resumed: int


def score_file(
    calibrator: PathLike,
    source: PathLike,
    target: PathLike,
    alpha: float | None = None,
    progress: Callable[[int, int], object] = lambda done, rows: None,
) -> Scored:
    """Score every row of ``source`` and write ``target``, a Parquet file with a row for each.

    Parameters
    ----------
    calibrator:
        A file that :meth:`TOOD.save <tood.TOOD.save>` or :meth:`Conformal.save <tood.decision.Conformal.save>` wrote.
    source:
        Logits as ``.npy``, ``.npz`` or ``.parquet``; see :mod:`tood.deploy.logit_files`.
    target:
        The file to make or replace. Columns: score (float32, or float64 for float64 logits), task (int32, the winning
        one), and with ``alpha`` p_value (float64) and accept (bool).
    alpha:
        The share of in-distribution rows that may be rejected; needs a file of :class:`~tood.decision.Conformal`.
    progress:
        Called now and then with the number of rows done and the number there are.
    """
    try:
        import pyarrow  # noqa: F401
    except ImportError as error:
        raise MissingDependencyError("pyarrow", "report", "writing scores") from error
    np.empty(1 << 24, dtype=np.uint8)  # once freed, glibc keeps up to twice its size: scratch is not faulted in anew
    job, target = _Job(calibrator, source, alpha), Path(target)
    if target.resolve() in (Path(source).resolve(), Path(calibrator).resolve()):
        raise ToodError(f"{target}: is an input, and the output would take its place")
    if target.suffix in OTHER_FORMATS:
        raise ToodError(f"{target}: scores are written as Parquet; expected a name such as {target.stem}.parquet")
    with _partial(target.with_name(target.name + ".partial"), job.key()) as (partial, begin):
        parts = job.complete_parts(os.fstat(partial.fileno()).st_size - begin)
        resumed = min(parts * PART, job.file.rows)
        partial.truncate(begin + resumed * job.row_bytes)
        partial.seek(begin)
        write_atomically(target, lambda temporary: job.write(partial, parts, temporary, progress))
        Path(partial.name).unlink(missing_ok=True)
    return Scored(job.file.rows, resumed)


def load_scorer(path: PathLike) -> TOOD | Conformal:
    """Whichever of the two kinds of file this is."""
    if kind_of(path) != CONFORMAL:
        return TOOD.load(path)
    conformal = Conformal.load(path)
    if not isinstance(conformal.cal, TOOD):
        raise ToodError(f"{os.fspath(path)}: expected a calibrator of logits, found {type(conformal.cal).__name__}")
    return conformal


class _Job:
    """What to score, with what, and the columns that come out."""

    def __init__(self, calibrator: PathLike, source: PathLike, alpha: float | None) -> None:
        self.calibrator, self.alpha = Path(calibrator), alpha
        model = load_scorer(calibrator)
        self.conformal = model if isinstance(model, Conformal) else Conformal(model)
        if alpha is not None:
            check_share("alpha", alpha)
            if model is not self.conformal:
                raise ToodError(
                    f"{self.calibrator}: alpha needs calibration scores, and this file has none; make one with "
                    "`tood calibrate --holdout 0.5`"
                )
        self.file = LogitsFile(source)
        # The first row shows whether the input fits the calibrator, and the precision of the score.
        nothing = np.empty((0, Partition(self.conformal.cal.tasks).columns), dtype=np.float32)
        scored = self._score(next(self.file.blocks(), nothing)[:1], np.random.default_rng(0), start=0)
        self.dtypes = {name: values.dtype for name, values in scored.items()}
        self.row_bytes = sum(dtype.itemsize for dtype in self.dtypes.values())

    def key(self) -> bytes:
        """One line that differs whenever a part would."""
        status = self.file.path.stat()
        made_from = {
            "calibrator": hashlib.sha256(self.calibrator.read_bytes()).hexdigest(),
            "input": [str(self.file.path.resolve()), status.st_size, status.st_mtime_ns],
            "alpha": self.alpha,
            "columns": {name: dtype.str for name, dtype in self.dtypes.items()},
            "rows of a part": PART,
        }
        return json.dumps(made_from).encode() + b"\n"

    def complete_parts(self, size: int) -> int:
        """How many parts lie whole within the first ``size`` bytes."""
        if size >= self.file.rows * self.row_bytes:
            return -(-self.file.rows // PART)
        return size // (PART * self.row_bytes)

    def parts(self, first: int) -> Iterator[Columns]:
        """Yield the columns of part ``first`` and of each later one."""
        start = first * PART
        if start >= self.file.rows:
            return
        columns, filled, rng = self._empty(start), 0, self._draws(first)
        for block in self.file.blocks(start):
            taken = 0
            while taken < len(block):
                rows = block[taken : taken + PART - filled]
                for name, values in self._score(rows, rng, start + filled).items():
                    columns[name][filled : filled + len(rows)] = values
                taken, filled = taken + len(rows), filled + len(rows)
                if start + filled == self.file.rows or filled == PART:
                    yield columns
                    start += filled
                    columns, filled, rng = self._empty(start), 0, self._draws(start // PART)

    def write(self, partial: IO[bytes], stored: int, path: Path, progress: Callable[[int, int], object]) -> None:
        """Make the Parquet file of the parts that ``partial`` holds, from where it stands, and of the rest."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        kinds = {name: pa.from_numpy_dtype(dtype) for name, dtype in self.dtypes.items()}
        schema = pa.schema([pa.field(name, kind, nullable=False) for name, kind in kinds.items()])
        # Plain encoding: a dictionary or a codec would take longer than the scores and save little.
        plain: dict[str, Any] = {"compression": "NONE", "use_dictionary": False, "write_statistics": ["score"]}

        def put(columns: Columns, keep: bool) -> int:
            if keep:
                for values in columns.values():
                    partial.write(values.data)
                partial.flush()
            arrays = [_arrow(values, kinds[name]) for name, values in columns.items()]
            writer.write_batch(pa.RecordBatch.from_arrays(arrays, schema=schema), row_group_size=PART)
            return len(arrays[0])

        with pq.ParquetWriter(path, schema, **plain) as writer, ThreadPoolExecutor(1) as thread:
            kept = (self._empty(part * PART) for part in range(stored))
            done = sum(put({k: np.fromfile(partial, v.dtype, len(v)) for k, v in c.items()}, keep=False) for c in kept)
            progress(done, self.file.rows)
            waiting: deque[Future[int]] = deque()
            for columns in self.parts(first=stored):
                waiting.append(thread.submit(put, columns, keep=True))
                if len(waiting) > 1:
                    done += waiting.popleft().result()
                    progress(done, self.file.rows)
            if waiting:
                progress(done + waiting.popleft().result(), self.file.rows)

    def _empty(self, start: int) -> Columns:
        """Columns for the part that begins at a row."""
        rows = min(PART, self.file.rows - start)
        return {name: np.empty(rows, dtype=dtype) for name, dtype in self.dtypes.items()}

    def _draws(self, part: int) -> np.random.Generator:
        """Random ties that depend on the row alone, not on where a run was interrupted."""
        return np.random.default_rng([self.conformal.seed, part])

    def _score(self, logits: Any, rng: np.random.Generator, start: int) -> Columns:
        try:
            if self.alpha is None:
                scores, tasks = score_and_assign(self.conformal.cal, logits)
                return {"score": scores, "task": np.asarray(tasks, dtype=np.int32)}
            decision = self.conformal.decide(logits, alpha=self.alpha, rng=rng)
        except ToodError as error:
            raise ToodError(f"{self.file.path}, counting from row {start}: {error}") from error
        task = decision.task.astype(np.int32)
        return {"score": decision.score, "task": task, "p_value": decision.p_value, "accept": decision.accept}


@contextmanager
def _partial(path: Path, key: bytes) -> Iterator[tuple[IO[bytes], int]]:
    """The file of parts and where they begin; locked against a second writer, emptied if made from other things."""
    import fcntl

    with path.open("a+b") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise ToodError(f"{path}: another process is writing it; wait until it is done, or stop it") from error
        file.seek(0)
        if file.readline() != key:
            file.truncate(0)
            file.write(key)
            file.flush()
        yield file, len(key)


def _arrow(values: npt.NDArray[Any], kind: Any) -> Any:
    """``values`` as an Arrow array; `pyarrow.array` would import pandas, where that is installed, to do the same."""
    import pyarrow as pa

    bits = np.packbits(values, bitorder="little") if values.dtype == np.bool_ else values
    return pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(bits)])

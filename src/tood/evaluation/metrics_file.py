"""metrics.parquet: one row per value, with the same bytes for the same values; trajectories read from it."""

from __future__ import annotations

import hashlib
import io
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from tood.errors import MissingDependencyError, ToodError, UnknownNameError
from tood.metrics import Trajectory
from tood.outputs.directory import PathLike
from tood.storage.files import contained, reading, write_file

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["accuracy", "load_metrics", "trajectory"]

DIGEST = b"tood.digest"  # of the values
VERSIONS = b"tood.versions"  # of the detectors: JSON, {name: version}
VERSIONS_DIGEST = b"tood.versions.digest"
BACKBONE = '{"features": "backbone"}'  # those of a detector with default settings on features of a frozen backbone
RAW = '{"logits": "raw"}'  # the settings of a detector with default settings on raw logits
MOST_ROWS, MOST_BYTES = 1_000_000, 1 << 26  # of a small file; a larger one may hold more in proportion
MOST_MISSING = 100  # steps that may be missing, so that a single large number does not make a large array
COLUMNS = ("step", "task", "ood_set", "group", "detector", "metric", "value", "calibration", "settings")


class Row(NamedTuple):
    """One row of the file, with the columns in the order of the file."""

    step: int
    task: int | None
    ood_set: str | None
    group: str | None
    detector: str | None
    metric: str
    value: float
    calibration: str
    settings: str


def to_table(rows: list[Row]) -> pa.Table:
    """Rows as a table, sorted by all columns with nulls first."""
    pa = _pyarrow()
    import pyarrow.compute as pc

    columns = list(zip(*rows, strict=True)) if rows else [()] * len(COLUMNS)
    arrays = [pa.array(values, type=kind) for values, kind in zip(columns, _schema().types, strict=True)]
    table = pa.Table.from_arrays(arrays, schema=_schema())
    # Tasks are 0 or more and names are not empty, so -1 and "" in place of null come first.
    filled = [pc.fill_null(a, -1 if a.type == pa.int32() else "") if a.null_count else a for a in arrays]
    keys = pa.Table.from_arrays(filled, names=COLUMNS)
    return table.take(pc.sort_indices(keys, sort_keys=[(name, "ascending") for name in COLUMNS]))


def save_metrics(table: pa.Table, path: Path) -> None:
    """Write the table atomically, with the versions of its detectors if it has them.

    Equal tables give equal bytes, because all options of the writer are fixed.
    """
    _pyarrow()
    import pyarrow.parquet as pq

    metadata = {DIGEST: _digest(table)}
    if versions := (table.schema.metadata or {}).get(VERSIONS):
        metadata |= {VERSIONS: versions, VERSIONS_DIGEST: _sha256(versions)}
    buffer = io.BytesIO()
    with pq.ParquetWriter(
        buffer,
        table.schema,
        version="2.6",
        data_page_version="1.0",
        compression="zstd",
        compression_level=3,
        use_dictionary=True,
        write_statistics=True,
        store_schema=False,
        write_page_checksum=True,
    ) as writer:
        writer.write_table(table, row_group_size=1 << 20)
        writer.add_key_value_metadata(metadata)  # that of the schema is left out with store_schema=False
    write_file(path, lambda temporary: temporary.write_bytes(buffer.getvalue()))


def load_metrics(path: PathLike) -> pa.Table:
    """The metrics of a run, checked against the digest in the file.

    Parameters
    ----------
    path:
        ``metrics.parquet``, or the run directory that holds it.
    """
    pa = _pyarrow()
    import pyarrow.parquet as pq

    file = Path(path)
    file = contained(file, file / "metrics.parquet") if file.is_dir() else file
    remedy = f"; `tood audit {file.parent}` computes it again"
    try:
        data = file.read_bytes()
        about = pq.read_metadata(pa.BufferReader(data))
        unpacked = sum(about.row_group(i).total_byte_size for i in range(about.num_row_groups))
        if about.num_rows > MOST_ROWS + 10 * len(data) or unpacked > MOST_BYTES + 100 * len(data):
            raise ValueError(f"{len(data)} bytes claim to hold {about.num_rows} rows")
        table = pq.read_table(pa.BufferReader(data), page_checksum_verification=True)
        table.validate(full=True)
    except FileNotFoundError as error:
        raise ToodError(f"{file}: no such file; `tood audit {file.parent}` makes it") from error
    except Exception as error:  # Arrow raises many kinds
        raise ToodError(f"{file}: truncated, or not a parquet file ({error}){remedy}") from error
    if tuple(table.column_names) != COLUMNS or table.schema.types != _schema().types:
        found = ", ".join(f"{field.name} ({field.type})" for field in table.schema)
        raise ToodError(f"{file}: expected the columns {', '.join(COLUMNS)}, found {found}{remedy}")
    metadata = table.schema.metadata or {}
    digest, versions = metadata.get(DIGEST), metadata.get(VERSIONS)  # older files have neither
    table = table.replace_schema_metadata(None if versions is None else {VERSIONS: versions})
    if (digest is not None and digest != _digest(table)) or (
        versions is not None and metadata.get(VERSIONS_DIGEST) != _sha256(versions)
    ):
        raise ToodError(f"{file}: damaged: its content does not match its digest{remedy}")
    _check_values(table, file)
    return table


def _digest(table: pa.Table) -> bytes:
    """SHA-256 of the values; it does not depend on the encoding of the file."""
    digest = hashlib.sha256()
    for name, kind in zip(COLUMNS, _schema().types, strict=True):
        column = table[name].combine_chunks()
        if kind == _pyarrow().string():
            encoded = column.dictionary_encode()  # in order of first appearance
            digest.update("\0".join(encoded.dictionary.to_pylist()).encode())
            column = encoded.indices
        digest.update(_filled(column).tobytes())
    return digest.hexdigest().encode()


def _sha256(text: bytes) -> bytes:
    return hashlib.sha256(text).hexdigest().encode()


def _check_values(table: pa.Table, file: Path) -> None:
    """Raise unless steps and tasks are plausible and values are in [0, 1]."""
    needed = ("step", "metric", "value", "calibration", "settings")
    if not table.num_rows or any(table[name].null_count for name in needed):
        raise ToodError(f"{file}: expected rows with {', '.join(needed)}, found none or a null")
    steps, tasks, values = (_filled(table[name]) for name in ("step", "task", "value"))
    distinct = np.unique(steps)
    checks = {
        "step: expected most steps from 0 to the last": distinct[0] >= 0
        and distinct[-1] < max(MOST_MISSING, 2 * len(distinct)),
        "task: expected tasks that their step has seen": ((tasks >= -1) & (tasks <= steps)).all(),
        "value: expected 0 to 1": ((values >= 0) & (values <= 1)).all(),  # False for NaN too
        "group: expected near or far": {*table["group"].unique().to_pylist()} <= {None, "near", "far"},
    }
    for expected, is_so in checks.items():
        if not is_so:
            raise ToodError(f"{file}: {expected}, found other values")
    with reading(file, "settings: expected JSON objects"):
        for settings in filter(None, table["settings"].unique().to_pylist()):
            dict(json.loads(settings).items())


def _filled(column: Any) -> npt.NDArray[Any]:
    """A column as a NumPy array; a null number becomes -1."""
    return np.asarray(column.fill_null(-1) if column.null_count else column)


def detectors_of(table: pa.Table) -> list[str]:
    """The measured detectors, in alphabetical order."""
    return sorted(name for name in table["detector"].unique().to_pylist() if name is not None)


def trajectory(
    table: pa.Table,
    detector: str,
    metric: str = "auroc",
    group: str | None = None,
    ood_set: str | None = None,
    calibration: str | None = None,
    settings: str = "",
) -> Trajectory:
    """The cube ``[step, task, OOD set]`` of one metric of one detector, with the group of each set.

    Parameters
    ----------
    table:
        The result of :func:`load_metrics`.
    detector, metric:
        The detector and the metric.
    group, ood_set:
        Only the OOD sets of this group, or only this set.
    calibration:
        The source of the calibration samples; needed if there are several.
    settings:
        The JSON of the settings that differ from the defaults.
    """
    asked = {"metric": metric, "group": group, "ood_set": ood_set, "calibration": calibration, "settings": settings}
    rows = _columns(table.filter(table["task"].is_valid()), detector=detector, **asked)
    if len(rows["step"]) == 0:
        if detector not in detectors_of(table):
            raise UnknownNameError("detector", detector, detectors_of(table))
        wanted = ", ".join(f"{name} {value!r}" for name, value in asked.items() if value)
        raise ToodError(f"metrics: {detector} was not measured with {wanted}")
    if len(set(rows["calibration"])) > 1:
        raise ToodError(f"calibration: expected one of {', '.join(sorted(set(rows['calibration'])))}")
    groups = dict(zip(rows["ood_set"], rows["group"], strict=True))
    sets = {name: place for place, name in enumerate(groups)}
    steps = int(rows["step"].max()) + 1
    values = np.full((steps, steps, len(sets)), np.nan)
    values[rows["step"], rows["task"], [sets[name] for name in rows["ood_set"]]] = rows["value"]
    return Trajectory(values, [str(groups[name]) for name in sets])


def accuracy(table: pa.Table) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Accuracy on task i at step t ``[T, T]`` (NaN for i > t), and on all tasks seen at each step ``[T]``."""
    rows = _columns(table, metric="accuracy")
    if not len(rows["step"]):
        raise ToodError("metrics: expected accuracy, found none")
    steps = int(rows["step"].max()) + 1
    by_task, pooled = np.full((steps, steps), np.nan), np.full(steps, np.nan)
    single = rows["task"] >= 0
    by_task[rows["step"][single], rows["task"][single]] = rows["value"][single]
    pooled[rows["step"][~single]] = rows["value"][~single]
    return by_task, pooled


def _columns(table: pa.Table, **wanted: str | None) -> dict[str, npt.NDArray[Any]]:
    """The matching rows as NumPy columns, of any value if None is wanted; a null task becomes -1."""
    import pyarrow.compute as pc

    for name, value in wanted.items():
        table = table if value is None else table.filter(pc.equal(table[name], value))  # a null is not equal
    return {name: _filled(table[name]) if name == "task" else table[name].to_numpy() for name in COLUMNS}


def _schema() -> pa.Schema:
    pa = _pyarrow()
    kinds = {"step": pa.int32(), "task": pa.int32(), "value": pa.float64()}
    return pa.schema([(name, kinds.get(name, pa.string())) for name in COLUMNS])


def _pyarrow() -> Any:
    try:
        import pyarrow
    except ImportError as error:
        raise MissingDependencyError("pyarrow", "report", "metrics.parquet") from error
    return pyarrow

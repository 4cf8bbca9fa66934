"""The metrics of many runs as one table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tood.evaluation.metrics_file import load_metrics
from tood.outputs.directory import PathLike, find_runs

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["results"]


def results(paths: PathLike | Sequence[PathLike]) -> pa.Table:
    """The metrics of all runs in some folders as one Arrow table, one row per value.

    Columns ``stream``, ``learner``, ``preset`` and ``seed`` say which run (``learner`` with BER and options), ``track``
    what detectors were fitted on; the others are those of ``metrics.parquet``. ``.to_pandas()`` or
    ``polars.from_arrow`` make a data frame of it. Runs that are not measured are left out.

    Parameters
    ----------
    paths:
        A run directory, a folder that contains some at any depth, or several of these.

    Examples
    --------
    AUROC per stream, learner, seed and detector: the mean over tasks of each step, then over steps, as in tables if all
    OOD sets are near or all far::

        frame = tood.results("runs").to_pandas().query("metric == 'auroc' and task == task")
        who = ["stream", "learner", "seed", "track", "detector", "settings"]
        frame.groupby([*who, "step"]).value.mean().groupby(who).mean()
    """
    import pyarrow as pa

    tables = []
    for run in find_runs(paths):
        if run.metrics_path.exists():
            table = load_metrics(run.path).replace_schema_metadata(None)
            names = ["track" if name == "calibration" else name for name in table.column_names]
            who = run.identity
            said = {"stream": who.stream, "learner": who.label, "preset": who.preset, "seed": who.seed}
            columns = {
                name: pa.repeat(pa.scalar(value, pa.int64() if name == "seed" else pa.string()), table.num_rows)
                for name, value in said.items()
            }
            tables.append(pa.table(columns | dict(zip(names, table.columns, strict=True))))
    return pa.concat_tables(tables) if tables else pa.table({})

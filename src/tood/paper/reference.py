"""Values reported in the TOOD paper, shipped as CSV files, and the report page that shows them beside ours."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tood.audit import ensure_verdict
from tood.evaluation.measure import default_scorers, evaluate
from tood.evaluation.metrics_file import detectors_of
from tood.outputs.directory import Run
from tood.report.gather import MeasuredRun
from tood.report.page.content import chosen_runs
from tood.report.summary import Key, Summaries, Summary
from tood.report.tables import TOOD_VARIANTS

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["reference_for", "report_page", "reported", "stated", "verdicts_of", "with_variants"]


def reported() -> Summaries:
    """Tables 1 (three seeds), 2 (the rows of BER), 3 (ImageNet) and 4 (ViT-B/16), with the labels of our runs."""
    rows = table_rows("reported.csv")
    values = (Summary(float(row["mean"]), float(row["std"]), int(row["seeds"])) for row in rows)
    keys = (Key(row["stream"], row["learner"], row["detector"], row["metric"]) for row in rows)
    return dict(zip(keys, values, strict=True))


def table_rows(name: str) -> list[dict[str, str]]:
    """The rows of one shipped CSV file."""
    text = (resources.files("tood.paper") / "tables" / name).read_text(encoding="utf-8")
    return list(csv.DictReader(text.splitlines()))


def stated() -> dict[tuple[str, str], float]:
    """The values in the paper's text and plots, by finding and learner; the learner is empty if it means all."""
    return {(row["finding"], row["learner"]): float(row["value"]) for row in table_rows("findings.csv")}


def reference_for(runs: Sequence[Run]) -> Summaries:
    """The paper's values; none if all runs learn on a frozen network, for which the paper has no values."""
    return reported() if any(run.manifest.get("preset") != "frozen" for run in runs) else {}


def with_variants(run: Run, table: pa.Table) -> pa.Table:
    """The metrics of a run with the paper's two variants: if they are missing, scored from the stored outputs."""
    import pyarrow as pa
    import pyarrow.compute as pc

    missing = [name for name in TOOD_VARIANTS if name not in detectors_of(table)]
    if not missing or len(run.steps()) < len(run.partition):
        return table
    scored = evaluate(run, default_scorers(run, missing)[0]).table
    added = scored.filter(pc.is_in(scored["detector"], pa.array(missing)))
    return pa.concat_tables([table, added.replace_schema_metadata(table.schema.metadata)])


def verdicts_of(measured: Sequence[MeasuredRun]) -> dict[Path, dict[str, Any] | None]:
    """The verdict on the first run of each learner; runs without one are audited."""
    return {one.run.path: ensure_verdict(one.run) for one in chosen_runs(measured)}


def report_page(
    runs: Sequence[Run | MeasuredRun], path: Path, verdicts: Mapping[Path, dict[str, Any] | None] | None = None
) -> Path:
    """Write the page of some runs, with the paper's values and verdicts (by default :func:`verdicts_of`)."""
    from tood.report.page.write import write_page

    measured = MeasuredRun.all_of(runs)
    reference = reference_for([one.run for one in measured])
    return write_page(measured, path, reference, verdicts_of(measured) if verdicts is None else verdicts)

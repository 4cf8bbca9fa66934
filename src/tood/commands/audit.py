"""``tood audit``: the judgement on outputs that anyone made."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from tood.audit import Audit
    from tood.report.tables import Table


@click.command()
@click.argument("path", type=click.Path(path_type=Path))
@click.option("--detectors", help="Only these, separated by commas.  [default: every one that can be scored]")
@click.option("--calibration", help="Another source of calibration samples, such as memory.")
@click.option("--json", "as_json", is_flag=True, help="Print verdict and figures as JSON.")
@click.option("--out", type=click.Path(path_type=Path), help="Write verdict and metrics.parquet to this folder too.")
def command(path: Path, detectors: str | None, calibration: str | None, as_json: bool, out: Path | None) -> None:
    """Judge the run directory PATH: how much OOD detection was forgotten, why, and what repairs it.

    PATH needs nothing but logits and labels, from any framework; docs/how-to/audit.md shows how to write it.

    \b
    Examples:
      tood audit runs/digits-icarl-cpu-s0
      tood audit my-run --detectors energy,tood_robust_anchor --json
      tood audit my-run --calibration memory --out report
    """
    from tood.audit import audit
    from tood.runs import Run

    names = [name.strip() for name in detectors.split(",") if name.strip()] if detectors else None
    with _Progress(quiet=as_json) as progress:
        found = audit(Run(path), names, calibration, progress)
    tables = _tables(found)
    if out is not None:
        _write(found, tables, out)
    if as_json:
        click.echo(json.dumps(_mapping(found, tables), indent=2))
    else:
        _print(found, tables)


def _print(found: Audit, tables: list[Table]) -> None:
    from tood.report.render import print_tables

    for sentence in found.verdict.sentences():
        click.echo(sentence)
    click.echo()
    print_tables(tables)
    for note in found.notes:
        click.echo(f"Note: {note}.")


def _tables(found: Audit) -> list[Table]:
    """AUROC along the stream first, then the tables that every report has, ranks aside: there is but one learner."""
    from tood.report.tables import tables_of, trajectory_table
    from tood.runs.metrics_file import detectors_of, trajectory

    shown = [name for name in ("energy", "tood_robust_anchor") if name in detectors_of(found.table)]
    along = [trajectory_table(name, trajectory(found.table, name)) for name in shown]
    return [*along, *tables_of([(found.run, found.table)])[:-1]]


def _mapping(found: Audit, tables: list[Table]) -> dict[str, object]:
    return {
        "run": str(found.run.path),
        "verdict": found.verdict.to_dict(),
        "notes": list(found.notes),
        "figures": [record for table in tables for record in table.records()],
    }


def _write(found: Audit, tables: list[Table], out: Path) -> None:
    from tood.files import write_text
    from tood.report.render import write_tables
    from tood.runs.metrics_file import save_metrics

    write_tables(tables, out)
    save_metrics(found.table, out / "metrics.parquet")
    verdict = json.dumps(found.verdict.to_dict(), indent=2) + "\n"
    lines = [*found.verdict.sentences(), "", *(f"Note: {note}." for note in found.notes)]
    write_text(out / "verdict.json", verdict)
    write_text(out / "verdict.md", "\n".join(lines) + "\n")


class _Progress:
    """The step and detector being scored, on a terminal only: a status line that leaves nothing behind."""

    def __init__(self, quiet: bool) -> None:
        from rich.console import Console

        console = Console(stderr=True, quiet=quiet)
        self._status = console.status("reading") if console.is_terminal else None

    def __enter__(self) -> _Progress:
        if self._status:
            self._status.start()
        return self

    def __exit__(self, *error: object) -> None:
        if self._status:
            self._status.stop()

    def __call__(self, step: int, detector: str) -> None:
        if self._status:
            self._status.update(f"step {step}: {detector}")

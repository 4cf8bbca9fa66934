"""``tood reproduce``: the paper's tables, one command each."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tood.commands._console import FILE, exit_if_failed, print_states
from tood.paper.reproduce import TARGETS, cells, presets_of

if TYPE_CHECKING:
    from tood.outputs.directory import Run

PRESETS = click.Choice(["paper", "released", "cpu", "frozen"])
SETTINGS = (
    "the paper's text, its authors' code, short runs for a CPU, a frozen network.  [default: cpu if there is one]"
)
SEEDS = "Number of seeds.  [default: 3 for tables and pretrained, else 1]"


@click.command()
@click.argument("target", type=click.Choice([*TARGETS]))
@click.option("--preset", type=PRESETS, help=f"Settings: {SETTINGS}")
@click.option("--out", type=FILE, default=Path("runs"), show_default=True, help="Parent folder.")
@click.option("--workers", type=click.IntRange(1), default=2, show_default=True, help="Parallel local processes.")
@click.option("--seeds", type=click.IntRange(1), help=SEEDS)
@click.option("--device", help="auto, cpu, cuda or mps.  [default: auto]")
@click.option("--precision", help="32-true, bf16-mixed, 16-mixed or auto.  [default: auto]")
@click.option("--detectors", help="Names, separated by commas.  [default: those of the target]")
@click.option("--dry-run", is_flag=True, help="List the runs and their progress, and stop.")
@click.option("--json", "as_json", is_flag=True, help="With --dry-run: print the progress of each run as JSON.")
def command(
    target: str,
    preset: str | None,
    out: Path,
    workers: int,
    seeds: int | None,
    dry_run: bool,
    as_json: bool,
    **options: str | None,
) -> None:
    """Reproduce a table of the paper: train its runs, then write tables with the paper's values, plots and a report.

    If interrupted, start the same command again to resume. Runs that another target has made in --out are reused.
    `tood ablate` and `tood toy` give the paper's ablations and its toy experiment.

    \b
    Examples:
      tood reproduce table1 --dry-run
      tood reproduce table1 --preset cpu --out runs --workers 2
      tood reproduce drift --out runs
    """
    from tood.errors import UnknownNameError
    from tood.outputs.directory import Run
    from tood.runs.sweep import run_cells

    if preset is not None and preset not in presets_of(target):
        raise click.UsageError(str(UnknownNameError(f"preset of {target}", preset, presets_of(target))))
    changes: dict[str, Any] = {name: value for name, value in options.items() if value is not None}
    members = [replace(cell, config=replace(cell.config, **changes)) for cell in cells(target, out, preset, seeds)]
    if dry_run:
        print_states({cell.config.name: cell.status() for cell in members}, as_json)
        return
    failed = run_cells(members, workers, say=click.echo)
    runs = [Run(cell.path) for cell in members if cell.outdated() is not None]
    if runs:
        _report(runs, out / "report" / target)
    exit_if_failed(failed, len(members))


def _report(runs: list[Run], folder: Path) -> None:
    """Write tables with the paper's values, plots, and the HTML report."""
    from tood.paper.reference import reference_for, report_page
    from tood.report.gather import MeasuredRun
    from tood.report.plots import draw_all
    from tood.report.render import print_tables, write_tables
    from tood.report.tables import tables_of

    measured = MeasuredRun.all_of(runs)
    tables = tables_of([(one.run, one.table) for one in measured], reference_for(runs))
    print_tables(tables)
    write_tables(tables, folder)
    draw_all(measured, folder / "plots")
    click.echo(f"Tables, plots and the page: {report_page(measured, folder / 'report.html')}")

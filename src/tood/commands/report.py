"""``tood report``: the page, tables and plots of measured runs."""

from __future__ import annotations

import json
import sys
from functools import partial
from pathlib import Path

import click

from tood.commands._console import FILE


@click.command()
@click.argument("paths", nargs=-1, required=True, type=FILE, metavar="RUN_OR_PARENT...")
@click.option("--full", is_flag=True, help="Print every table, not only the ten best scores.")
@click.option("--tables", "want_tables", is_flag=True, help="Print every table (Markdown if piped), and no page.")
@click.option("--plots", "want_plots", is_flag=True, help="Draw every plot, as PNG and PDF, and no page.")
@click.option(
    "--against", type=click.Choice(["paper"]), help="Also show the paper's value and the difference, and its variants."
)
@click.option("--track", default="", help="Data that detectors are fitted on.  [default: the first of each run]")
@click.option("--json", "as_json", is_flag=True, help="Print the tables as JSON.")
@click.option(
    "--out", type=FILE, help="Folder for page, plots and tables.  [default: RUN_OR_PARENT/report, without tables]"
)
def command(
    paths: tuple[Path, ...],
    full: bool,
    want_tables: bool,
    want_plots: bool,
    against: str | None,
    track: str,
    as_json: bool,
    out: Path | None,
) -> None:
    """Report on measured runs: each RUN_OR_PARENT is a run directory or a folder of them.

    Writes a page, one HTML file to look at or to send to a colleague, and prints what was lost, why, what to use, and
    the ten best scores.

    \b
    Examples:
      tood report runs/digits-icarl-cpu-s0
      tood report runs --plots
      tood report runs --full
      tood report runs --tables --against paper
      tood report runs/cifar10-icarl-cpu-s0 runs/cifar10-icarl-cpu-s1 --json
    """
    from tood.evaluation.versions import summary
    from tood.outputs import find_runs
    from tood.paper.reference import report_page, reported, verdicts_of, with_variants
    from tood.report.gather import MeasuredRun
    from tood.report.render import print_results, print_tables, to_markdown, write_tables
    from tood.report.tables import best_tables, tables_of
    from tood.storage.files import contained

    runs = MeasuredRun.all_of(find_runs(paths), track)
    if note := summary(one.table for one in runs):
        click.echo(f"note: {note}", err=True)
    measured = [(one.run, one.table) for one in runs]
    if against == "paper":
        measured = [(run, with_variants(run, table)) for run, table in measured]
    tables = tables_of(measured, reported() if against == "paper" else None, track=track)
    if out is not None:
        write_tables(tables, out)
    if as_json:
        click.echo(json.dumps([record for table in tables for record in table.records()], indent=2))
    elif want_tables and sys.stdout.isatty():
        print_tables(tables)
    elif want_tables:
        click.echo("\n".join(map(to_markdown, tables)), nl=False)
    folder = out or (paths[0] / "report" if len(paths) == 1 else Path("report"))
    if out is None and len(paths) == 1:
        contained(paths[0], folder / "plots")
    if want_plots:
        from tood.report.plots import draw_all

        files = draw_all(runs, folder / "plots", against == "paper", say=partial(click.echo, err=True))
        click.echo(f"{len(files)} files in {folder / 'plots'}", err=True)
    elif not (want_tables or as_json):
        verdicts = verdicts_of(runs)
        print_results(runs, verdicts, tables if full or against else best_tables(measured))
        page = report_page(runs, folder / "report.html", verdicts)
        click.echo(f"The page: {page}\nNext: open it in a browser; --full prints every table.", err=True)

"""``tood report``: the page, tables and figures of measured runs."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tood.console import FILE

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tood.report.summary import Key, Summary
    from tood.runs import Run


@click.command()
@click.argument("paths", nargs=-1, required=True, type=FILE, metavar="RUN_OR_PARENT...")
@click.option("--tables", "want_tables", is_flag=True, help="Tables only, without the page.")
@click.option("--figures", "want_figures", is_flag=True, help="Draw every figure, as PNG and PDF, and no page.")
@click.option(
    "--format",
    "form",
    type=click.Choice(["terminal", "md", "csv", "latex"]),
    help="How tables are printed.  [default: terminal; md if the output is not one]",
)
@click.option("--against", type=click.Choice(["paper"]), help="Also show the paper's value and the difference.")
@click.option(
    "--fpr",
    type=click.Choice(["ood", "id"]),
    default="ood",
    show_default=True,
    help="Which FPR@95: at 95 % of OOD rejected (the paper's tables) or of ID accepted (its text).",
)
@click.option("--json", "as_json", is_flag=True, help="Print the tables as JSON.")
@click.option(
    "--out", type=FILE, help="Folder for page, figures and tables.  [default: RUN_OR_PARENT/report, without tables]"
)
def command(
    paths: tuple[Path, ...],
    want_tables: bool,
    want_figures: bool,
    form: str | None,
    against: str | None,
    fpr: str,
    as_json: bool,
    out: Path | None,
) -> None:
    """Report on measured runs: each RUN_OR_PARENT is a run directory or a folder of them.

    Prints tables and writes a page, one HTML file to look at or to send to a colleague.

    \b
    Examples:
      tood report runs/digits-icarl-cpu-s0
      tood report runs --figures
      tood report runs --tables
      tood report runs --tables --against paper --format md
      tood report runs/cifar10-icarl-cpu-s0 runs/cifar10-icarl-cpu-s1 --json
    """
    from tood.paper.reference import reported
    from tood.report.tables import tables_of
    from tood.runs import find_runs, load_metrics
    from tood.runs.versions import summary

    runs = find_runs(paths)
    measured = [(run, load_metrics(run.path)) for run in runs]
    if note := summary(table for _, table in measured):
        click.echo(f"note: {note}", err=True)
    tables = tables_of(measured, reported() if against == "paper" else None, fpr=fpr)  # type: ignore[arg-type]
    if out is not None:
        from tood.report.render import write_tables

        write_tables(tables, out)
    if as_json:
        click.echo(json.dumps([record for table in tables for record in table.records()], indent=2))
    elif want_tables or not want_figures:
        _print(tables, form or ("terminal" if sys.stdout.isatty() else "md"))
    folder = out or (paths[0] / "report" if len(paths) == 1 else Path("report"))
    if want_figures:
        from tood.report.figures import draw_all

        click.echo(f"{len(draw_all(runs, folder / 'figures'))} files in {folder / 'figures'}", err=True)
    elif not (want_tables or as_json):
        click.echo(f"The page: {report_page(runs, folder / 'report.html')}", err=True)


def report_page(runs: list[Run], path: Path) -> Path:
    """Write the page of some runs, with the paper's values and verdicts; runs without a verdict are audited first."""
    from tood.audit import ensure_verdict
    from tood.report.gather import Measured
    from tood.report.page.content import chosen_runs
    from tood.report.page.write import write_page

    verdicts = {one.run.path: ensure_verdict(one.run) for one in chosen_runs(Measured.all_of(runs))}
    return write_page(runs, path, reference_for(runs), verdicts)


def reference_for(runs: list[Run]) -> Mapping[Key, Summary]:
    """The paper's values; none if all runs learn on a frozen network, for which the paper has no values."""
    from tood.paper.reference import reported

    return reported() if any(run.manifest.get("preset") != "frozen" for run in runs) else {}


def _print(tables: list[Any], form: str) -> None:
    from tood.report.render import print_tables, to_csv, to_latex, to_markdown

    if form == "terminal":
        print_tables(tables)
    elif form == "csv":
        click.echo(to_csv(tables), nl=False)
    else:
        click.echo("\n".join(map(to_markdown if form == "md" else to_latex, tables)), nl=False)

"""``tood report``: tables of measured runs."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import click


@click.command()
@click.argument("paths", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="RUN_OR_PARENT...")
@click.option("--tables", "want_tables", is_flag=True, help="Tables (also what you get without any such flag).")
@click.option(
    "--format",
    "form",
    type=click.Choice(["terminal", "md", "csv", "latex"]),
    help="How tables are printed.  [default: terminal; md where the output is not one]",
)
@click.option("--against", type=click.Choice(["paper"]), help="Put the paper's figure and the difference beside each.")
@click.option(
    "--fpr",
    type=click.Choice(["ood", "id"]),
    default="ood",
    show_default=True,
    help="Which FPR@95: at 95 % of OOD caught (the paper's tables) or of ID accepted (its text).",
)
@click.option("--json", "as_json", is_flag=True, help="Print the figures as JSON.")
@click.option("--out", type=click.Path(path_type=Path), help="Write tables as Markdown, CSV and LaTeX to this folder.")
def command(
    paths: tuple[Path, ...],
    want_tables: bool,
    form: str | None,
    against: str | None,
    fpr: str,
    as_json: bool,
    out: Path | None,
) -> None:
    r"""Report on measured runs: each RUN_OR_PARENT is a run directory or a folder of them.

    \b
    Examples:
      tood report runs --tables
      tood report runs --tables --against paper --format md
      tood report runs/cifar10-icarl-cpu-s0 runs/cifar10-icarl-cpu-s1 --json
    """
    from tood.pipeline import find_runs, load_metrics
    from tood.report.tables import tables_of

    measured = [(run, load_metrics(run.path)) for run in find_runs(paths)]
    tables = tables_of(measured, against_paper=against == "paper", fpr=fpr)  # type: ignore[arg-type]
    if out is not None:
        from tood.report.render import write_tables

        write_tables(tables, out)
    if as_json:
        click.echo(json.dumps([record for table in tables for record in table.records()], indent=2))
    else:
        _print(tables, form or ("terminal" if sys.stdout.isatty() else "md"))


def _print(tables: list[Any], form: str) -> None:
    from tood.report.render import print_tables, to_csv, to_latex, to_markdown

    if form == "terminal":
        print_tables(tables)
    elif form == "csv":
        click.echo(to_csv(tables), nl=False)
    else:
        click.echo("\n".join(map(to_markdown if form == "md" else to_latex, tables)), nl=False)

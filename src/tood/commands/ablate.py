"""``tood ablate``: ablations of TOOD on the stored outputs of runs."""

from __future__ import annotations

import json
from pathlib import Path

import click

from tood.console import FILE, split_names

__all__ = ["command"]


@click.command()
@click.argument("paths", nargs=-1, required=True, type=FILE, metavar="RUN_OR_PARENT...")
@click.option(
    "--only",
    default="",
    help="Ablations to run, separated by commas: buffer, margin, mechanism, partition, anchor, source, interval."
    "  [default: all]",
)
@click.option("--draws", type=click.IntRange(1), default=5, show_default=True, help="Random calibration sets per size.")
@click.option("--resamples", type=click.IntRange(10), default=200, show_default=True, help="Bootstrap resamples.")
@click.option("--figures/--no-figures", default=True, help="Draw figures (needs matplotlib).  [default: figures]")
@click.option("--json", "as_json", is_flag=True, help="Print every row as JSON.")
@click.option("--out", type=FILE, help="Folder for tables and figures.  [default: RUN_OR_PARENT/ablations]")
def command(
    paths: tuple[Path, ...], only: str, draws: int, resamples: int, figures: bool, as_json: bool, out: Path | None
) -> None:
    """Vary TOOD's parts and settings on stored outputs. Nothing is trained; a run takes seconds.

    buffer: size and choice of the calibration set. margin: λ. mechanism: parts of TOOD alone, temperature, prototypes.
    partition: tasks split into parts. anchor: the reference task. source: calibration on training data, exemplars or
    samples never trained on. interval: bootstrap intervals. The summary also shows the paper's findings.

    \b
    Examples:
      tood ablate runs/digits-icarl-cpu-s0
      tood ablate runs --only margin,buffer --out ablations
      tood ablate runs --only source --json
    """
    from tood.errors import ToodError, UnknownNameError
    from tood.paper.ablation_summary import draw_ablations, gather_ablations, summarize, write_ablations
    from tood.paper.ablations import ABLATIONS
    from tood.report.render import print_tables
    from tood.runs.directory import find_runs

    names = split_names(only)
    for name in names:
        if name not in ABLATIONS:
            raise click.UsageError(str(UnknownNameError("ablation", name, ABLATIONS)))
    runs = [run for run in find_runs(paths) if run.steps()]
    if not runs:
        raise ToodError(f"{paths[0]}: expected runs with outputs, found none")
    rows, notes = gather_ablations(
        runs, names, say=lambda name: click.echo(name, err=True), draws=draws, resamples=resamples
    )
    folder = out or (paths[0] / "ablations" if len(paths) == 1 else Path("ablations"))
    summary = summarize(rows, notes)
    written = write_ablations(rows, summary, folder)
    if figures:
        written += draw_ablations(rows, folder)
    if as_json:
        click.echo(json.dumps({"rows": rows, "summary": summary.records(), "notes": notes}, indent=1))
    else:
        print_tables([summary])
    click.echo(f"{len(written)} files in {folder}", err=True)

"""``tood ablate``: ablations of TOOD on the stored outputs of runs."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import click

from tood.commands._console import FILE, split_names


@click.command()
@click.argument("paths", nargs=-1, required=True, type=FILE, metavar="RUN_OR_PARENT...")
@click.option("--only", default="", help="The names of ablations below, separated by commas.  [default: all]")
@click.option("--draws", type=click.IntRange(1), default=5, show_default=True, help="Random calibration sets per size.")
@click.option("--plots/--no-plots", default=True, help="Draw plots (needs matplotlib).  [default: plots]")
@click.option("--json", "as_json", is_flag=True, help="Print every row as JSON.")
@click.option("--out", type=FILE, help="Folder for tables and plots.  [default: RUN_OR_PARENT/ablations]")
def command(paths: tuple[Path, ...], only: str, draws: int, plots: bool, as_json: bool, out: Path | None) -> None:
    """Vary TOOD's parts and settings on stored outputs. Nothing is trained; a run takes seconds.

    buffer: size and choice of the calibration set. margin: λ. mechanism: parts of TOOD alone, temperature, prototypes.
    partition: tasks split into parts. anchor: the reference task. The summary also shows the paper's findings.

    \b
    Examples:
      tood ablate runs/digits-icarl-cpu-s0
      tood ablate runs --only margin,buffer --out ablations
      tood ablate runs --only mechanism --json
    """
    from tood.errors import ToodError
    from tood.outputs.directory import find_runs
    from tood.paper.ablation_summary import write_ablations
    from tood.report.render import print_tables

    runs = [run for run in find_runs(paths) if run.steps()]
    if not runs:
        raise ToodError(f"{paths[0]}: expected runs with outputs, found none")
    folder = out or (paths[0] / "ablations" if len(paths) == 1 else Path("ablations"))
    say = partial(click.echo, err=True)
    done = write_ablations(runs, folder, split_names(only), plots, say, draws)
    if as_json:
        click.echo(json.dumps({"rows": done.rows, "summary": done.summary.records()}, indent=1))
    else:
        print_tables([done.summary])
    click.echo(f"{len(done.files)} files in {folder}", err=True)

"""``tood sweep``: a grid of runs."""

from __future__ import annotations

import os
from pathlib import Path

import click

from tood.commands._console import FILE, exit_if_failed, print_states


@click.command()
@click.argument("file", type=FILE)
@click.option("--out", type=FILE, default=Path("runs"), show_default=True, help="Parent folder.")
@click.option("--workers", type=click.IntRange(1), default=2, show_default=True, help="Local processes at a time.")
@click.option(
    "--gpus-per-run",
    type=click.FloatRange(0, 1),
    default=1.0,
    show_default=True,
    help="Share of a GPU per run, if there are GPUs: with 0.5 two runs share one.",
)
@click.option("--log-to", multiple=True, metavar="TRACKER", help="Each run writes to tensorboard, mlflow or wandb too.")
@click.option("--status", is_flag=True, help="Show the progress of each cell, and stop.")
@click.option("--quiet", is_flag=True, help="Print nothing but errors.")
@click.option("--json", "as_json", is_flag=True, help="With --status: print JSON.")
def command(
    file: Path,
    out: Path,
    workers: int,
    gpus_per_run: float,
    log_to: tuple[str, ...],
    status: bool,
    quiet: bool,
    as_json: bool,
) -> None:
    """Run every cell of a grid of streams, learners, seeds and options.

    Names and settings of all cells are checked before the first one starts. A sweep may be interrupted at any time;
    start it again to resume. A cell that fails is reported at the end; the others finish. Sweeps that are started on
    several machines with the same --out share the cells. If a detector has a newer version than its metrics, it is
    measured again; a run without outputs (store: metrics) must be removed for this.

    \b
    Example:
      printf 'grid: {learner: [icarl, der], seed: [0, 1]}' > sweep.yaml
      tood sweep sweep.yaml --out runs
      tood sweep sweep.yaml --out runs --status
    """
    from tood.runs.sweep import read_sweep, run_cells

    cells = read_sweep(file, out)
    if status:
        print_states({cell.config.name: cell.status() for cell in cells}, as_json)
        return
    if log_to:
        from tood.integrations.trackers import prepare

        prepare(log_to)
        os.environ["TOOD_LOG_TO"] = " ".join(log_to)  # read by `tood run`, the process of each cell
    say = (lambda line: None) if quiet else click.echo
    failed = run_cells(cells, workers, say=say, where=str(file), gpus_per_run=gpus_per_run)
    exit_if_failed(failed, len(cells))
    if not quiet:
        click.echo(f"{len(cells)} runs in {out}")

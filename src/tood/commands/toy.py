"""``tood toy``: OOD forgetting and its repair on a stream with known geometry."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from tood.paper.toy import ToyRun

__all__ = ["command"]

MAX_WORKERS = 4  # a container may report more cores than it is allowed to use


def _seeds(ctx: click.Context, parameter: click.Parameter, text: str) -> list[int]:
    from tood.paper.toy import check_seeds

    try:
        seeds = [int(part) for part in text.split(",")]
        check_seeds(seeds)
    except ValueError as error:
        raise click.BadParameter(f"expected distinct integers such as 0,1,2; found {text!r}") from error
    return seeds


@click.command()
@click.option("--seeds", default="0,1,2,3,4", show_default=True, callback=_seeds, help="Seeds, separated by commas.")
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("runs/toy"),
    show_default=True,
    help="Folder for toy.csv, toy.json, toy.png and toy.pdf.",
)
@click.option("--figure/--no-figure", default=True, help="Draw the figure (needs matplotlib).  [default: figure]")
@click.option("--json", "as_json", is_flag=True, help="Print the summary as JSON.")
def command(seeds: list[int], out: Path, figure: bool, as_json: bool) -> None:
    """Show OOD forgetting, its repair, and when the repair fails, in seconds.

    Sixteen Gaussian classes arrive two at a time around an OOD cluster. Three regimes: well separated classes with
    replay, classes so close that they overlap, and no replay.

    Example: tood toy --seeds 0,1,2 --out runs/toy
    """
    from tood.files import write_text
    from tood.paper.toy_results import summarize, tables, to_csv, to_json
    from tood.report.render import print_tables

    out.mkdir(parents=True, exist_ok=True)
    results = list(_run(seeds))
    write_text(out / "toy.csv", to_csv(results))
    write_text(out / "toy.json", to_json(results))
    if as_json:
        click.echo(json.dumps(summarize(results), indent=2, ensure_ascii=False))
    else:
        print_tables(tables(results))
    written = "toy.csv, toy.json"
    if figure:
        from tood.paper.toy_figure import toy_figure
        from tood.report.figures import save

        save(toy_figure(results), out / "toy")
        written += ", toy.png, toy.pdf"
    click.echo(f"Written to {out}: {written}", err=as_json)


def _run(seeds: list[int]) -> Iterator[ToyRun]:
    """All runs, with progress on standard error: a bar on a terminal, one line per run elsewhere."""
    from rich.console import Console
    from rich.progress import track

    from tood.paper.toy import REGIMES, runs

    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    results = runs(seeds, workers=min(cores, MAX_WORKERS))
    total = len(REGIMES) * len(seeds)
    console = Console(stderr=True)
    if console.is_terminal:
        yield from track(results, "Learning", total=total, console=console, transient=True)
        return
    for count, run in enumerate(results, start=1):
        click.echo(f"{count}/{total} {run.regime.replace('_', ' ')}, seed {run.seed}", err=True)
        yield run

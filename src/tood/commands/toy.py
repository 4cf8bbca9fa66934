"""``tood toy``: the phenomenon and its repair on a stream whose geometry is known."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from rich.table import Table

    from tood.paper.toy import ToyRun

__all__ = ["command"]

MOST_WORKERS = 4  # enough for a dozen seconds in all; a container may show more cores than it may use


def _seeds(ctx: click.Context, parameter: click.Parameter, text: str) -> list[int]:
    from tood.paper.toy import check_seeds

    try:
        seeds = [int(part) for part in text.split(",")]
        check_seeds(seeds)
    except ValueError as error:
        raise click.BadParameter(f"expected different whole numbers, such as 0,1,2; found {text!r}") from error
    return seeds


@click.command()
@click.option("--seeds", default="0,1,2,3,4", show_default=True, callback=_seeds, help="Seeds, with commas between.")
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("runs/toy"),
    show_default=True,
    help="Folder for toy.csv, toy.json, toy.png and toy.pdf.",
)
@click.option("--figure/--no-figure", default=True, help="Draw the picture (needs matplotlib).  [default: figure]")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(seeds: list[int], out: Path, figure: bool, as_json: bool) -> None:
    """See out-of-distribution forgetting, its repair, and where the repair fails, in seconds.

    Sixteen Gaussian classes arrive two at a time around an OOD blob. Three regimes: classes well separated with
    replay, classes crowded until they overlap, and no replay at all.

    Example: tood toy --seeds 0,1,2 --out runs/toy
    """
    from tood.files import write_text
    from tood.paper.toy_tables import summarize, to_csv, to_json

    out.mkdir(parents=True, exist_ok=True)
    results = list(_progress(seeds))
    write_text(out / "toy.csv", to_csv(results))
    write_text(out / "toy.json", to_json(results))
    if as_json:
        click.echo(json.dumps(summarize(results), indent=2, ensure_ascii=False))
    else:
        _print(results)
    written = "toy.csv, toy.json"
    if figure:
        from tood.paper.toy_figure import toy_figure
        from tood.report.figures import save

        save(toy_figure(results), out / "toy")
        written += ", toy.png, toy.pdf"
    click.echo(f"Written to {out}: {written}", err=as_json)


def _progress(seeds: list[int]) -> Iterator[ToyRun]:
    """Every run, with a bar on a terminal and a line each elsewhere, on the error stream."""
    from rich.console import Console
    from rich.progress import track

    from tood.paper.toy import REGIMES, runs

    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    found = runs(seeds, workers=min(cores, MOST_WORKERS))
    total = len(REGIMES) * len(seeds)
    console = Console(stderr=True)
    if console.is_terminal:
        yield from track(found, "Learning", total=total, console=console, transient=True)
        return
    for count, run in enumerate(found, start=1):
        click.echo(f"{count}/{total} {run.regime.replace('_', ' ')}, seed {run.seed}", err=True)
        yield run


def _print(results: list[ToyRun]) -> None:
    from rich.console import Console

    console = Console(highlight=False, soft_wrap=True)
    seeds = len({r.seed for r in results})
    console.print(f"Avg AUROC in %, ID against OOD: mean ± std over {seeds} seed{'s' * (seeds > 1)}")
    console.print(_summary(results))
    console.print(
        "first 5, all 8: the steps averaged. gain: over energy on the same seeds.\n"
        "D_avg: what old tasks lost from their own step to the last. step 1: two tasks.\n\n"
        "Seed by seed, first 5 steps: energy → robust anchor (λ=0)"
    )
    console.print(_by_seed(results))
    console.print(_remarks(results))


def _summary(results: list[ToyRun]) -> Table:
    """Means over seeds, a section a regime; fits 80 columns."""
    from rich import box
    from rich.table import Table

    from tood.paper.toy_tables import summarize

    methods: dict[tuple[str, str], list[dict[str, Any]]] = {}  # the first steps, then all
    for row in summarize(results):
        methods.setdefault((row["regime"], row["method"]), []).append(row)
    table = Table(box=box.SIMPLE, padding=(0, 1, 0, 0))
    table.add_column("Score", no_wrap=True)
    for heading in ("first 5", "gain", "all 8", "gain", "D_avg", "step 1"):
        table.add_column(heading, justify="right", no_wrap=True)
    for (regime, method), (first, every) in methods.items():
        if method == "energy":
            table.add_section()
            table.add_row(f"[bold]{regime.replace('_', ' ')}")
        cells = []
        for row in (first, every):
            gain = "" if method == "energy" else f"{100 * row['gain']:+.1f}"
            cells += [f"{100 * row['avg_auroc']:.1f} ± {100 * row['avg_auroc_std']:.1f}", gain]
        table.add_row(method, *cells, f"{100 * every['d_avg']:.1f}", f"{100 * every['by_step'][1]:.1f}")
    return table


def _by_seed(results: list[ToyRun]) -> Table:
    from rich import box
    from rich.table import Table

    from tood.paper.toy_tables import FIRST, by_regime

    regimes = by_regime(results)
    table = Table(box=box.SIMPLE, padding=(0, 1, 0, 0))
    for heading in ("seed", *regimes):
        table.add_column(heading.replace("_", " "), justify="right", no_wrap=True)
    for runs in zip(*regimes.values(), strict=True):
        pairs = [[r.trajectory(m, FIRST).average() for m in ("energy", "robust anchor, λ=0")] for r in runs]
        table.add_row(str(runs[0].seed), *(f"{100 * before:.1f} → {100 * after:.1f}" for before, after in pairs))
    return table


def _remarks(results: list[ToyRun]) -> str:
    """What the tables do not show: the gap, and what is left in the channels of old tasks."""
    import numpy as np

    from tood.paper.toy_tables import by_regime

    regimes = by_regime(results)
    before, shifted, anchored = (
        np.mean([r.gap[name][1:] for r in regimes["separated"]]) for name in ("before", "mean_shift", "robust_anchor")
    )
    left = {
        regime.replace("_", " "): np.mean([r.own_channel[t, :t].mean() for r in of for t in range(1, len(r.accuracy))])
        for regime, of in regimes.items()
    }
    return (
        "The confidence gap (separated): the newest task's mean own-channel energy lies\n"
        f"{before:.1f} energy units above the first task's, mean over steps; after re-centring\n"
        f"{shifted:.1f} (mean shift), {anchored:.1f} (robust anchor).\n"
        "What TOOD has to work with: AUROC of old tasks by their own channel alone\n(50 % = nothing): "
        + ", ".join(f"{name} {100 * value:.0f} %" for name, value in left.items())
        + "."
    )

"""``tood toy``: OOD forgetting and its repair on a stream with known geometry."""

from __future__ import annotations

import json
from pathlib import Path

import click

from tood.commands._console import FILE


def _seeds(ctx: click.Context, parameter: click.Parameter, text: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",")]
    except ValueError as error:
        raise click.BadParameter(f"expected distinct integers such as 0,1,2; found {text!r}") from error


@click.command()
@click.option("--seeds", default="0,1,2,3,4", show_default=True, callback=_seeds, help="Seeds, separated by commas.")
@click.option("--out", type=FILE, default=Path("runs/toy"), show_default=True, help="Folder for tables and figure.")
@click.option("--authors", is_flag=True, help="Also the crowding of the authors' code: radius 1.4, OOD deviation 0.35.")
@click.option("--figure/--no-figure", default=True, help="Draw the figure (needs matplotlib).  [default: figure]")
@click.option("--json", "as_json", is_flag=True, help="Print the summary as JSON.")
def command(seeds: list[int], out: Path, authors: bool, figure: bool, as_json: bool) -> None:
    """Show OOD forgetting, its repair, and when the repair fails, in less than a minute.

    Sixteen Gaussian classes arrive two at a time around an OOD cluster. Three regimes: well separated classes with
    replay, classes so close that they overlap, and no replay.

    Example: tood toy --seeds 0,1,2 --out runs/toy
    """
    from tood.paper.toy import REGIMES, STANDARD, runs
    from tood.paper.toy_results import summarize, tables, write_toy
    from tood.report.render import print_tables

    regimes = tuple(REGIMES) if authors else STANDARD
    results = []
    for run in runs(seeds, regimes=regimes):
        results.append(run)
        click.echo(f"{len(results)}/{len(regimes) * len(seeds)} {run.regime}, seed {run.seed}", err=True)
    files = write_toy(results, out)
    if as_json:
        click.echo(json.dumps(summarize(results), indent=2, ensure_ascii=False))
    else:
        print_tables(tables(results))
    if figure:  # last: without matplotlib the numbers are safe
        from tood.report.plots import save  # first: its error names the extra to install

        from tood.paper.toy_figure import toy_figure  # isort: skip

        files += save(toy_figure(results), out / "toy")
    click.echo(f"Written to {out}: {', '.join(file.name for file in files)}", err=as_json)

"""``tood reproduce``: the paper's tables, figures and ablations, one command each."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tood.console import FILE, exit_if_failed, print_states

if TYPE_CHECKING:
    from collections.abc import Iterable

    import pyarrow as pa

    from tood.runs.directory import Run
    from tood.runs.sweep import Cell, Engine

__all__ = ["command"]

TRAINED = ("table1", "table2", "imagenet", "vit", "drift", "tinyimagenet", "variations", "pretrained", "length")
STORED = ("figures", "ablations", "toy")  # these train nothing, apart from the toy (seconds)


@click.command()
@click.argument("target", type=click.Choice([*TRAINED, *STORED]))
@click.option(
    "--preset",
    type=click.Choice(["paper", "released", "cpu", "frozen"]),
    help="Settings: in the paper's text, as its authors ran it, short runs for a CPU, or a frozen network "
    "(pretrained and length).  [default: cpu, or frozen]",
)
@click.option("--out", type=FILE, default=Path("runs"), show_default=True, help="Parent folder.")
@click.option("--workers", type=click.IntRange(1), default=2, show_default=True, help="Parallel local processes.")
@click.option(
    "--seeds", type=click.IntRange(1), help="Number of seeds.  [default: 3 for tables and pretrained, else 1]"
)
@click.option("--engine", type=click.Choice(["local", "ray"]), default="local", show_default=True, help="Where to run.")
@click.option(
    "--dry-run", is_flag=True, help="List the runs, their progress and the total time and disk left, and stop."
)
@click.option(
    "--collect",
    type=FILE,
    metavar="DIR",
    help="Copy the results of finished runs to DIR, for `make results`, and stop.",
)
@click.option("--commit", help="With --collect: commit that made the runs.  [default: git describe]")
@click.option("--json", "as_json", is_flag=True, help="With --dry-run: print the progress of each run as JSON.")
@click.option("--totals", is_flag=True, help='With --json: print {"runs": progress, "total": time and disk left}.')
@click.pass_context
def command(
    ctx: click.Context,
    target: str,
    preset: str | None,
    out: Path,
    workers: int,
    seeds: int | None,
    engine: Engine,
    dry_run: bool,
    collect: Path | None,
    commit: str | None,
    as_json: bool,
    totals: bool,
) -> None:
    """Reproduce a table of the paper: train its runs, then write tables with the paper's values, plots and a report.

    If interrupted, start the same command again to resume. Runs that another target has made in --out are reused.
    The targets figures and ablations use the runs in --out and train nothing.

    \b
    Examples:
      tood reproduce table1 --dry-run
      tood reproduce table1 --dry-run --json --totals
      tood reproduce table1 --preset cpu --out runs --workers 2
      tood reproduce drift --out runs
      tood reproduce pretrained --out runs --dry-run
      tood reproduce ablations --out runs
      tood reproduce table1 --out runs --collect docs/results/metrics
    """
    from tood.errors import UnknownNameError
    from tood.paper.reproduce import cells, notes, presets_of

    if target in TRAINED and preset is not None and preset not in presets_of(target):
        raise click.UsageError(str(UnknownNameError(f"preset of {target}", preset, presets_of(target))))
    members = cells(target, out, preset, seeds) if target in TRAINED else []
    for note in notes(target, preset):
        click.echo(f"Note: {note}.", err=True)
    if totals and not (dry_run and as_json):
        raise click.UsageError("--totals: expected --dry-run --json with it")
    if dry_run:
        _list(target, members, out, preset, as_json, totals)
    elif collect is not None:
        _collect(target, members, out, preset, collect, commit)
    elif target == "toy":
        from tood.commands.toy import command as toy

        ctx.invoke(toy, seeds=list(range(seeds or 5)), out=out / "toy", figure=True, as_json=False)
    elif target == "ablations":
        from tood.commands.ablate import command as ablate

        ctx.invoke(ablate, paths=tuple(run.path for run in _finished([], out, preset)), out=out / "ablations")
    else:
        from tood.runs.sweep import run_cells

        failed = run_cells(members, workers, engine, say=click.echo)
        _report(_finished(members, out, preset), out / "report" / target)
        exit_if_failed(failed, len(members))


def _finished(members: list[Cell], out: Path, preset: str | None) -> list[Run]:
    """The finished runs of a target; if it trains none, all in ``out``, or all with this preset."""
    from tood.errors import ToodError
    from tood.runs.directory import Run, find_runs

    runs = [Run(cell.path) for cell in members if cell.is_measured()] if members else find_runs([out])
    runs = [run for run in runs if run.metrics_path.exists() and preset in (None, run.manifest.get("preset"))]
    if not runs:
        raise ToodError(f"{out}: expected finished runs, found none")
    return runs


def _report(runs: list[Run], folder: Path) -> None:
    """Write tables with the paper's values, plots, and the HTML report."""
    from tood.commands.report import reference_for, report_page
    from tood.report.figures import draw_all
    from tood.report.render import print_tables, write_tables
    from tood.report.tables import tables_of
    from tood.runs.metrics_file import load_metrics

    measured = [(run, load_metrics(run.path)) for run in runs]
    _warn(table for _, table in measured)
    tables = tables_of(measured, reference_for(runs))
    print_tables(tables)
    write_tables(tables, folder)
    draw_all(runs, folder / "figures")
    click.echo(f"Tables, figures and the page: {report_page(runs, folder / 'report.html')}")


def _warn(tables: Iterable[pa.Table]) -> None:
    """Print one line about outdated metrics, if there are any."""
    from tood.runs.versions import summary

    if note := summary(tables):
        click.echo(f"note: {note}", err=True)


def _list(target: str, members: list[Cell], out: Path, preset: str | None, as_json: bool, totals: bool) -> None:
    if members:
        states = {cell.config.name: cell.status() for cell in members}
    elif target == "toy":
        states = {"toy": "done" if (out / "toy" / "toy.json").exists() else "waiting"}
    else:
        states = {run.path.name: "done" for run in _finished(members, out, preset)}
    waiting = [cell for cell in members if states[cell.config.name] != "done"]
    if as_json and totals:
        click.echo(json.dumps({"runs": states, "total": _total(waiting)}, indent=2))
        return
    print_states(states, as_json)
    if as_json:
        return
    click.echo(f"{sum(state == 'done' for state in states.values())} of {len(states)} done", err=True)
    if waiting:
        click.echo(_total_line(_total(waiting)))


def _total(waiting: list[Cell]) -> dict[str, Any]:
    """Time and disk of the runs that are not done, from a few batches of one seed each.

    ``seconds`` includes ``extraction_seconds``, those of the ``images`` whose features are extracted first. ``error``
    says what cannot be estimated.
    """
    from tood.errors import ToodError
    from tood.runs.plan import Estimate, estimate, extraction, feature_network
    from tood.streams.catalog import family

    click.echo("estimating time and disk …", err=True)
    costs: dict[str, Estimate] = {}
    looked: set[tuple[object, ...]] = set()  # runs on the same stream and network share features
    missing: dict[Path, int] = {}
    seconds, first, disk = 0.0, 0.0, 0.0
    for cell in waiting:
        key = json.dumps({**cell.config.to_mapping(), "seed": 0}, sort_keys=True, default=str)
        try:
            cost = costs[key] = costs.get(key) or estimate(cell.config)
            if cell.config.frozen:
                shared = family(cell.config.identity.stream), cell.config.ood, feature_network(cell.config)
                files, each = ({}, 0.0) if shared in looked else extraction(cell.config)
                looked.add(shared)
                first += each * sum(images for file, images in files.items() if file not in missing)
                missing |= files
        except ToodError as error:
            return {"runs": len(waiting), "error": str(error)}
        seconds += cost.training + cost.evaluation
        disk += cost.disk
    return {
        "runs": len(waiting),
        "seconds": seconds + first,
        "gigabytes": disk / 1e9,
        "images": sum(missing.values()),
        "extraction_seconds": first,
    }


def _total_line(total: dict[str, Any]) -> str:
    """The totals as one line."""
    from tood.times import duration

    if "error" in total:
        return f"time and disk cannot be estimated: {total['error']}"
    times = f"about {duration(total['seconds'])} on this device, one after another"
    first = f"{total['images']:,} images (about {duration(total['extraction_seconds'])}; not in the GB)"
    extra = f", with features of {first}" if total["images"] else ""
    return f"{total['runs']} runs left: {times}, and {total['gigabytes']:.1f} GB{extra}"


def _collect(target: str, members: list[Cell], out: Path, preset: str | None, folder: Path, commit: str | None) -> None:
    from tood.paper.collect import collect_figures, collect_runs, current_commit
    from tood.paper.toy_results import collect_toy
    from tood.runs.metrics_file import load_metrics

    commit = current_commit() if commit is None else commit
    if target == "toy":
        names = [path.name for path in collect_toy(out, folder, commit)]
        click.echo(f"{folder}: {', '.join(names) or 'nothing new'}")
        return
    runs = _finished(members, out, preset)
    _warn(load_metrics(run.path) for run in runs)
    copied = collect_runs(runs, folder, commit)
    files = collect_figures(out, folder, commit)
    click.echo(f"{folder}: {len(copied)} of {len(runs)} finished runs are new; {len(files)} figures and summaries")

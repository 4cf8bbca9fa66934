"""``tood score``: score files of logits of any length in constant memory."""

from __future__ import annotations

import json
import sys
import time
import warnings
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from tood.deploy.score_file import Scored
    from tood.deploy.score_files import Engine

__all__ = ["command"]


@click.command()
@click.option("--calibrator", type=click.Path(path_type=Path), required=True, help="What `tood calibrate` wrote.")
@click.option(
    "--in",
    "sources",
    type=click.Path(path_type=Path),
    required=True,
    multiple=True,
    help="Logits: .npy [n, C]; .npz with an array logits; .parquet with a list column logits, or columns logit_0, …. "
    "Also a folder of them or a quoted pattern; may be given several times.",
)
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    required=True,
    help="The Parquet file to write; with several inputs the folder, a file NAME.parquet for each.",
)
@click.option(
    "--alpha",
    type=click.FloatRange(0, 1, min_open=True, max_open=True),
    help="Also decide: reject at most this share of in-distribution rows.",
)
@click.option(
    "--engine",
    type=click.Choice(["local", "ray"]),
    default="local",
    show_default=True,
    help="Several inputs one after the other, or as tasks of a Ray cluster (RAY_ADDRESS, else this machine).",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(
    calibrator: Path, sources: tuple[Path, ...], out: Path, alpha: float | None, engine: Engine, as_json: bool
) -> None:
    """Score logits, and accept or reject each row.

    Writes the columns score (higher = in-distribution) and task (the winning one), with --alpha also p_value and
    accept. Memory does not grow with the file. A run that was stopped goes on where it was when started again.

    Example: tood score --calibrator cal.safetensors --in logits.npy --out scores.parquet --alpha 0.05

    Many files: tood score --calibrator cal.safetensors --in 'logits/*.npy' --out scores --engine ray
    """
    from tood.deploy.score_file import score_file
    from tood.deploy.score_files import find_files, score_files

    several = find_files(sources) != [sources[0]] or len(sources) > 1
    begin = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("once", UserWarning)
        warnings.showwarning = lambda message, *_: click.echo(f"tood: warning: {message}", err=True)
        if several:
            say = _nothing if as_json else _line
            results = score_files(calibrator, sources, out, alpha, engine, progress=say)
        else:
            progress = _show if sys.stderr.isatty() else lambda *_: None
            scored = score_file(calibrator, sources[0], out, alpha, progress=progress)
    seconds = time.perf_counter() - begin
    if several:
        rows, resumed = (sum(column) for column in zip(*results.values(), strict=True))
        files = {str(target): result._asdict() for target, result in results.items()}
    else:
        rows, resumed, files = *scored, {}
    if as_json:
        figures = {"rows": rows, "resumed": resumed, "seconds": round(seconds, 3), "out": str(out)}
        click.echo(json.dumps({**figures, "files": files} if several else figures))
        return
    earlier = f", {resumed:,} of them in an earlier run" if resumed else ""
    click.echo(f"{out}: {rows:,} rows scored in {seconds:.1f} s{earlier}")


def _nothing(target: Path, scored: Scored) -> None:
    """With --json only the end is printed."""


def _line(target: Path, scored: Scored) -> None:
    """A line for each file that is done."""
    click.echo(f"{target.name}: {scored.rows:,} rows", err=True)


def _show(done: int, rows: int) -> None:
    """One line on a terminal, rewritten."""
    click.echo(f"\r{done:,} of {rows:,} rows" + ("\n" if done == rows else ""), nl=False, err=True)

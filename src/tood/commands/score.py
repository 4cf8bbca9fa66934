"""``tood score``: score a file of logits of any length in constant memory."""

from __future__ import annotations

import json
import sys
import time
import warnings
from pathlib import Path

import click

__all__ = ["command"]


@click.command()
@click.option("--calibrator", type=click.Path(path_type=Path), required=True, help="What `tood calibrate` wrote.")
@click.option(
    "--in",
    "source",
    type=click.Path(path_type=Path),
    required=True,
    help="Logits: .npy [n, C]; .npz with an array logits; .parquet with a list column logits, or columns logit_0, ….",
)
@click.option("--out", type=click.Path(path_type=Path), required=True, help="The Parquet file to write.")
@click.option("--alpha", type=float, help="Also decide: reject at most this share of in-distribution rows.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(calibrator: Path, source: Path, out: Path, alpha: float | None, as_json: bool) -> None:
    """Score logits, and accept or reject each row.

    Writes the columns score (higher = in-distribution) and task (the winning one), with --alpha also p_value and
    accept. Memory does not grow with the file. A run that was stopped goes on where it was when started again.

    Example: tood score --calibrator cal.safetensors --in logits.npy --out scores.parquet --alpha 0.05
    """
    from tood.batch import score_file

    begin = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("once", UserWarning)
        warnings.showwarning = lambda message, *_: click.echo(f"tood: warning: {message}", err=True)
        scored = score_file(calibrator, source, out, alpha, progress=_show if sys.stderr.isatty() else lambda *_: None)
    seconds = time.perf_counter() - begin
    if as_json:
        click.echo(json.dumps({**scored._asdict(), "seconds": round(seconds, 3), "out": str(out)}))
        return
    earlier = f", {scored.resumed:,} of them in an earlier run" if scored.resumed else ""
    click.echo(f"{out}: {scored.rows:,} rows scored in {seconds:.1f} s{earlier}")


def _show(done: int, rows: int) -> None:
    """One line on a terminal, rewritten."""
    click.echo(f"\r{done:,} of {rows:,} rows" + ("\n" if done == rows else ""), nl=False, err=True)

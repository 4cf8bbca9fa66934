"""``tood score``: score files of logits of any length in constant memory."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tood.commands._console import FILE, LOGITS, SHARE, invalid_option, progress_bar, warnings_as_lines
from tood.storage.durations import duration

if TYPE_CHECKING:
    from tood.deploy.score_file import Scored


@click.command()
@click.option("--calibrator", type=FILE, required=True, help="What `tood calibrate` wrote.")
@click.option(
    "--in",
    "sources",
    type=FILE,
    required=True,
    multiple=True,
    help=f"{LOGITS} Also a folder of such files or a quoted pattern; may be given several times.",
)
@click.option(
    "--out",
    type=FILE,
    required=True,
    help="The file to write, .parquet or .csv; with several inputs the folder, for one NAME.parquet per input.",
)
@click.option("--alpha", type=SHARE, help="Also decide: reject at most this share of in-distribution rows.")
@click.option("--risk", type=SHARE, help="Also decide: at most this share of accepted rows is wrong (90 % confidence).")
@invalid_option("reject them with a null score")
@click.option("--keep", multiple=True, metavar="COLUMN", help="Copy this input column, such as an id; may be repeated.")
@click.option("--quiet", is_flag=True, help="Print neither warnings nor the summary.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(
    calibrator: Path, sources: tuple[Path, ...], out: Path, quiet: bool, as_json: bool, **settings: Any
) -> None:
    """Score logits, and accept or reject each row.

    Writes the columns score (higher = in-distribution) and task (the winning one), with --alpha also p_value and
    accept, with --risk accept. Memory does not grow with the file. With several inputs, a run that was stopped skips
    the files that are done when the same command is run again.

    Example: tood score --calibrator cal.safetensors --in logits.csv --out scores.parquet --alpha 0.05 --keep id

    Many files: tood score --calibrator cal.safetensors --in 'logits/*.npy' --out scores
    """
    from tood.deploy.score_file import Scored, score_file
    from tood.deploy.score_files import find_files, score_files

    if settings["alpha"] and settings["risk"]:
        raise click.UsageError("give one of --alpha and --risk")
    files = find_files(sources)
    several = files != [sources[0]]
    started = time.perf_counter()
    with warnings_as_lines(quiet), progress_bar("files" if several else "rows", quiet or as_json) as update:
        if several:
            done: list[Path] = []

            def show(target: Path, scored: Scored) -> None:
                done.append(target)
                update(len(done), len(files))

            results = score_files(calibrator, sources, out, progress=show, **settings)
        else:
            results = {out: score_file(calibrator, sources[0], out, progress=update, **settings)}
    seconds = time.perf_counter() - started
    summary = vars(Scored.total(list(results.values())))
    if as_json:
        metrics = {"out": str(out), "seconds": round(seconds, 3), **summary}
        if several:
            metrics["files"] = {str(target): vars(scored) for target, scored in results.items()}
        click.echo(json.dumps(metrics))
    elif not quiet:
        _show(out, summary, seconds)


def _show(out: Path, summary: dict[str, Any], seconds: float) -> None:
    rows = max(1, summary["rows"])
    earlier = f", {summary['earlier']} of the files in an earlier run" if summary["earlier"] else ""
    click.echo(f"{out}: {summary['rows']:,} rows scored in {duration(seconds)}{earlier}")
    if summary["rejected"] is not None:
        click.echo(f"rejected: {summary['rejected']:,} ({summary['rejected'] / rows:.1%})")
    if summary["invalid"]:
        what = "rejected, with a null score" if summary["rejected"] is not None else "given a null score"
        click.echo(f"invalid: {summary['invalid']:,} rows with a missing, NaN or infinite logit, {what}")
    for task, count in enumerate(summary["tasks"]):
        lost = summary["rejected_tasks"]
        share = f", {lost[task]:,} rejected ({lost[task] / max(1, count):.1%})" if lost is not None else ""
        click.echo(f"task {task}: {count:,} rows{share}")

"""``tood demo``: the whole pipeline on data bundled with the dependencies."""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tood.console import FILE

if TYPE_CHECKING:
    from tood.report.summary import Key, Summary

LEARNERS = ("finetune", "lwf", "icarl", "der", "bic", "wa")
# A few of each kind, so that the table fits on a screen; `tood list detectors` names them all.
DETECTORS = (
    *("msp", "energy", "react", "ash", "vim", "mds", "knn", "nnguide"),
    *("tood_mean_shift", "tood_robust_anchor", "tood_shrinkage", "tood_joint", "typicality"),
)


@click.command()
@click.option(
    "--out",
    type=FILE,
    default=Path("runs/demo"),
    show_default=True,
    help="Parent folder of the run directories and of the page.",
)
@click.option("--seeds", type=click.IntRange(1), default=2, show_default=True, help="Number of seeds per learner.")
@click.option("--workers", type=click.IntRange(1), default=2, show_default=True, help="Number of parallel processes.")
@click.option("--json", "as_json", is_flag=True, help="Print the tables as JSON.")
def command(out: Path, seeds: int, workers: int, as_json: bool) -> None:
    """Train six learners on handwritten digits, evaluate 13 detectors at every step, and report what was lost.

    Nothing is downloaded: the images come with scikit-learn. If interrupted, start the command again to resume.

    \b
    Example:
      tood demo --out runs/demo
    """
    from tood import learners  # noqa: F401 (if torch is missing, this names the extra to install)
    from tood.commands.report import report_page
    from tood.errors import ToodError
    from tood.report.render import print_tables
    from tood.report.summary import collect
    from tood.report.tables import tables_of
    from tood.runs.config import RunConfig
    from tood.runs.directory import find_runs
    from tood.runs.metrics_file import load_metrics
    from tood.runs.sweep import Cell, run_cells

    started = time.perf_counter()
    plain = RunConfig(detectors=DETECTORS, logits="corrected")
    pairs = [(seed, name) for seed in range(seeds) for name in LEARNERS]
    cells = [Cell(dataclasses.replace(plain, learner=name, seed=seed), out) for seed, name in pairs]
    failed = run_cells(cells, workers, say=lambda text: click.echo(text, err=as_json))
    if failed:
        raise ToodError("; ".join(f"{name}: {error}" for name, error in failed.items()))
    runs = find_runs([cell.path for cell in cells])
    measured = [(run, load_metrics(run.path)) for run in runs]
    tables = [table for table in tables_of(measured) if table.name in ("digits-main", "ranks")]
    if as_json:
        click.echo(json.dumps([record for table in tables for record in table.records()], indent=2))
    else:
        print_tables(tables)
        for line in _in_words(collect(measured)):
            click.echo(line)
    page = report_page(runs, out / "report" / "report.html")
    click.echo(f"{len(runs)} runs in {time.perf_counter() - started:.0f} s. Page: {page.resolve()}", err=as_json)


def _in_words(summaries: Mapping[Key, Summary]) -> Iterator[str]:
    """One line per learner: accuracy, AUROC that energy lost along the stream, and what TOOD changes."""
    figure = {(key.learner, key.detector, key.metric): value.mean for key, value in summaries.items()}
    for name in LEARNERS:
        plain, repaired = (figure[name, detector, "avg_auroc"] for detector in ("energy", "tood_shrinkage"))
        lost = figure[name, "energy", "d_avg"]
        yield (
            f"{name:>9}: accuracy {figure[name, '-', 'avg_cil_acc']:.1f} %; energy "
            f"{'lost' if lost >= 0 else 'gained'} {abs(lost):.1f} points of AUROC per task by the last step; "
            f"TOOD {'adds' if repaired >= plain else 'costs'} {abs(repaired - plain):.1f} on average "
            f"({plain:.1f} → {repaired:.1f})"
        )

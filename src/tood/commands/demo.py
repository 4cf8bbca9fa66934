"""``tood demo``: what a continual learner loses, and what TOOD restores, on data inside the package."""

from __future__ import annotations

import dataclasses
import json
import time
from pathlib import Path
from typing import Any

import click

from tood.commands._console import FILE, JSON

# TOOD repairs the first; the second is balanced; the third has forgotten too much.
LEARNERS = ("der", "bic", "finetune")
DETECTORS = (
    *("msp", "energy", "react", "gen", "rmds", "mds"),
    *("tood_mean_shift", "tood_robust_anchor", "tood", "tood_joint", "typicality"),
)
WIDTH = 40  # characters of a bar


@click.command()
@click.option("--full", is_flag=True, help="Train, evaluate and audit three learners, and write the page.")
@click.option("--out", type=FILE, default=Path("runs/demo"), show_default=True, help="With --full: parent folder.")
@click.option("--workers", type=click.IntRange(1), default=2, show_default=True, help="Number of parallel processes.")
@JSON
def command(full: bool, out: Path, workers: int, as_json: bool) -> None:
    """Show on real logits how rejection of unknown inputs decays along a stream, and what TOOD restores.

    With --full the whole job is done: three learners are trained on image features, evaluated at every step and
    audited, and the page is written. Nothing is downloaded. If interrupted, start the command again to resume.

    \b
    Examples:
      tood demo
      tood demo --full --out runs/demo
    """
    if full:
        _whole_job(out, workers, as_json)
        return
    rows = _along_the_stream()
    if as_json:
        click.echo(json.dumps(rows, indent=2))
        return
    click.echo("CIFAR-10 learned in five tasks by WA on frozen features. After each task: are unknown inputs")
    click.echo("(CIFAR-100, textures) separated from known ones? AUROC: 100 is perfect, 50 is a coin.\n")
    click.echo("task  accuracy  energy    TOOD   ░ energy  █ restored by TOOD")
    for row in rows:
        low, high = (round(WIDTH * (row[name] - 50) / 50) for name in ("energy", "tood"))
        bar = "░" * low + "█" * max(0, high - low)
        click.echo(f"{row['task']:>4}  {row['accuracy']:>7.1f} {row['energy']:>7.1f} {row['tood']:>7.1f}   {bar}")
    first, last = rows[0], rows[-1]
    click.echo(
        f"\nEnergy lost {first['energy'] - last['energy']:.1f} points; TOOD, from the same logits and 20 labelled "
        f"samples per class, restores {last['tood'] - last['energy']:.1f} of them."
    )
    click.echo(
        "Next, with your own logits:  tood calibrate --logits cal.npz --tasks '[[0, 1], [2, 3]]' --out cal.safetensors"
    )


def _along_the_stream() -> list[dict[str, float]]:
    """Accuracy and AUROC in percent after each task."""
    import numpy as np

    from tood import TOOD, energy
    from tood.examples import STEPS, example
    from tood.metrics import auroc

    rows = []
    for step in range(STEPS):
        ex = example(step)
        scores = {"energy": energy, "tood": TOOD(ex.tasks).fit(ex.calibration, ex.labels).score}
        row = {"task": float(step), "accuracy": 100 * float((ex.test.argmax(axis=1) == ex.test_labels).mean())}
        for name, score in scores.items():
            row[name] = 100 * float(np.mean([auroc(score(ex.test), score(x)) for x in (ex.near, ex.far)]))
        rows.append(row | {"task": step})
    return rows


def _whole_job(out: Path, workers: int, as_json: bool) -> None:
    from tood import learners  # noqa: F401 (if torch is missing, this names the extra to install)
    from tood.errors import ToodError
    from tood.outputs import find_runs
    from tood.paper.reference import report_page, verdicts_of
    from tood.report.gather import MeasuredRun
    from tood.report.render import print_results
    from tood.report.tables import best_tables
    from tood.runs.config import RunConfig
    from tood.runs.sweep import Cell, run_cells

    started = time.perf_counter()
    settings: dict[str, Any] = {"stream": "cifar10_components", "detectors": DETECTORS, "logits": "corrected"}
    plain = RunConfig(**settings)
    cells = [Cell(dataclasses.replace(plain, learner=name), out) for name in LEARNERS]
    failed = run_cells(cells, workers, say=lambda text: click.echo(text, err=as_json))
    if failed:
        raise ToodError("; ".join(f"{name}: {error}" for name, error in failed.items()))
    runs = MeasuredRun.all_of(find_runs([cell.path for cell in cells]))
    verdicts = verdicts_of(runs)
    page = report_page(runs, out / "report" / "report.html", verdicts)
    if as_json:
        cards = {one.run.learner: (verdicts[one.run.path] or {})["card"] for one in runs}
        click.echo(json.dumps(cards, indent=2))
    else:
        print_results(runs, verdicts, best_tables([(one.run, one.table) for one in runs]))
    click.echo(f"{len(runs)} runs in {time.perf_counter() - started:.0f} s. Page: {page.resolve()}", err=as_json)
    click.echo(
        f"Next, with your own checkpoints: `tood audit --help`; with these: `tood report {out} --full`.", err=as_json
    )

"""``tood calibrate``: fit a calibrator to logits and write it to one small file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import click

from tood.calibration import Reference, Variant
from tood.choose import ADVICE
from tood.commands._console import FILE, LOGITS, SHARE, read_tasks, warnings_as_lines
from tood.errors import ToodError, located
from tood.storage.files import for_json, sha256

if TYPE_CHECKING:
    from tood.arrays import FloatArray, IntArray
    from tood.calibration import TOOD
    from tood.decision import Conformal, PredictionSets
    from tood.partition import Partition

EXISTING = click.Path(path_type=Path, exists=True, dir_okay=False)


@click.command(context_settings={"show_default": True})
@click.option("--logits", type=FILE, required=True, help=LOGITS)
@click.option("--labels", type=FILE, help="Labels [n], logit columns.  [default: the column labels of --logits]")
@click.option("--tasks", required=True, help="Columns per task: '[[0, 1], [2, 3]]', a JSON file, or a run's manifest.")
@click.option("--out", type=FILE, required=True, help="The safetensors file to write.")
@click.option(
    "--variant", type=click.Choice(get_args(Variant)), default="background", help="How channels are normalised."
)
@click.option("--margin", type=float, default=0.5, help="Weight of the lead over the second channel.")
@click.option(
    "--reference", type=click.Choice(get_args(Reference)), default="latest", help="Task that sets the score's units."
)
@click.option("--holdout", type=SHARE, help="Keep this share of the samples for decisions, such as 0.5.")
@click.option("--conformal", type=FILE, help="A file of other samples, logits and labels, for decisions.")
@click.option(
    "--folds",
    type=int,
    help="Use every sample to fit and to decide, by cross-fitting in this many folds: about alpha of the known inputs "
    "is rejected, at most about 2 alpha.",
)
@click.option(
    "--sets", type=click.Choice(["lac", "aps"]), help="Keep samples for prediction sets in place of decisions."
)
@click.option("--per-task", type=click.Choice(["winning", "true"]), help="Hold alpha per task.  [default: overall]")
@click.option("--per-class", is_flag=True, help="Hold alpha per class; rejects fewer unknown inputs.")
@click.option("--parent", type=EXISTING, help="Keep name and SHA-256 of this file, the decision of the version before.")
@click.option("--metadata", multiple=True, metavar="NAME=TEXT", help="A text to keep in the file; may be repeated.")
@click.option("--force", is_flag=True, help="Overwrite --out if it exists.")
@click.option("--quiet", is_flag=True, help="Print neither warnings nor the table.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(
    out: Path,
    as_json: bool,
    quiet: bool,
    force: bool,
    parent: Path | None,
    metadata: tuple[str, ...],
    **settings: Any,
) -> None:
    """Fit a calibrator to labelled in-distribution logits and write it to one file.

    With --holdout, --conformal or --folds the file also holds calibration scores, and `tood score --alpha` can accept
    or reject with a guarantee; the samples must then be ones the network was not trained on.

    Example: tood calibrate --logits cal.csv --tasks '[[0, 1], [2, 3]]' --out cal.safetensors --holdout 0.5
    """
    if out.exists() and not force:
        raise click.UsageError(f"{out} exists; give --force to overwrite it")
    if wrong := [pair for pair in metadata if "=" not in pair]:
        raise click.UsageError(f"--metadata: expected NAME=TEXT, found {wrong[0]!r}")
    with warnings_as_lines(quiet):
        fitted = _fit(**settings)
    cal: Any = getattr(fitted, "cal", fitted)
    cal.metadata_ = dict(pair.split("=", 1) for pair in metadata)
    if parent is not None:
        cal.metadata_ |= {"parent": str(parent), "parent_sha256": sha256(parent)}
    fitted.save(out)
    rows = [
        {**{name: values[t] for name, values in cal.statistics_.items()}, **diagnostics._asdict()}
        for t, diagnostics in enumerate(cal.diagnostics_)
    ]
    if as_json:
        metrics = {"out": str(out), "kind": type(fitted).__name__, "tasks": rows}
        click.echo(json.dumps(for_json(metrics), indent=2))
    elif not quiet:
        _show(rows)
        click.echo(ADVICE)
        click.echo(f"{out}: {'calibrator and calibration scores' if fitted is not cal else 'calibrator'}")
        if fitted is not cal:
            from tood.decision.facts import decision_facts

            for name, value in decision_facts(fitted, 0.05).items():
                click.echo(f"{name}: {value}")


def _show(rows: list[dict[str, Any]]) -> None:
    """Statistics and diagnostics per task."""
    click.echo(" task  samples    median      MAD  AUROC  95 % interval      gap  channel   trust")
    for row in rows:
        click.echo(
            f"{row['task']:>5}{row['samples']:>9}{row['median']:>10.3f}{row['mad']:>9.3f}{row['auroc']:>7.3f}"
            f"{row['low']:>9.3f}–{row['high']:.3f}{row['gap']:>9.3f}  {'alive' if row['alive'] else 'dead':<7}"
            f"{row['trust']:>8.2f}"
        )
    click.echo(
        "AUROC: calibration samples of the task against those of the other tasks, by the task's energy. gap: mean "
        "energy of\nthe latest task minus this task's. A dead channel does not separate its task; trust: how far the "
        "default variant moves it."
    )


def _fit(
    logits: Path,
    labels: Path | None,
    tasks: str,
    variant: Variant,
    margin: float,
    reference: Reference,
    holdout: float | None,
    conformal: Path | None,
    folds: int | None,
    sets: Any,
    per_task: Any,
    per_class: bool,
) -> TOOD | Conformal | PredictionSets:
    """The calibrator, with calibration scores if requested."""
    import numpy as np

    from tood.calibration import TOOD
    from tood.decision import Conformal, PredictionSets

    choices = sum(choice is not None for choice in (holdout, conformal, folds))
    if choices > 1:
        raise click.UsageError("give one of --holdout, --conformal and --folds")
    if not choices and (sets or per_task or per_class):
        raise click.UsageError("--sets, --per-task and --per-class need --holdout, --conformal or --folds too")
    if sets and folds is not None:
        raise click.UsageError("--sets: expected --holdout or --conformal, found --folds")
    partition = read_tasks(tasks)
    cal = TOOD(partition, variant, margin, reference)
    rows, columns = _read(logits, labels, partition)
    if folds is not None:
        return Conformal.cross(cal, rows, columns, folds=folds, per_task=per_task, per_class=per_class)
    if conformal is not None:
        more, more_columns = _read(conformal, None, partition)
        _check_separate(logits, rows, conformal, more)
    elif holdout is not None:
        # Rows are drawn regardless of their labels, so that kept and other samples stay exchangeable.
        order = np.random.default_rng(0).permutation(len(columns))
        kept, rest = np.split(order, [round(holdout * len(columns))])
        more, more_columns, rows, columns = rows[kept], columns[kept], rows[rest], columns[rest]
    cal.fit(rows, columns)
    if not choices:
        return cal
    if sets:
        decision: Any = PredictionSets(cal, sets, per="class" if per_class else "task" if per_task else None)
    else:
        decision = Conformal(cal, per_task, per_class=per_class)
    fitted: Conformal | PredictionSets = decision.fit(more, more_columns)
    return fitted


def _check_separate(logits: Path, rows: FloatArray, conformal: Path, more: FloatArray) -> None:
    """Raise if more than 1 % of the samples for decisions are calibration samples."""
    used, kept = ({row.tobytes() for row in array.astype("f8")} for array in (rows, more))
    if len(used & kept) > 0.01 * len(more):
        raise ToodError(
            f"--conformal: expected samples that were not used for calibration, found {len(used & kept):,} rows of "
            f"{logits} in {conformal}; give another file, or --holdout 0.5 or --folds 5 in its place"
        )


def _read(path: Path, labels: Path | None, partition: Partition) -> tuple[FloatArray, IntArray]:
    """Logits and labels; messages give row numbers of the file."""
    from tood.arrays import finite, label_columns
    from tood.deploy.logit_files import read_labelled
    from tood.energy import check_columns

    logits, columns = read_labelled(path, labels)
    with located(path):
        check_columns(finite(logits, "logits"), partition)
    with located(labels or path):
        return logits, label_columns(columns, partition.columns, len(columns))

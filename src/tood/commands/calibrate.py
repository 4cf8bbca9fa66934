"""``tood calibrate``: fit a calibrator to logits and write it to one small file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import click

from tood.calibration import Reference, Variant
from tood.choose import ADVICE
from tood.commands._console import FILE, LOGITS, SHARE, invalid_option, read_tasks, warnings_as_lines
from tood.storage.files import for_json, sha256

if TYPE_CHECKING:
    from tood.arrays import FloatArray, IntArray
    from tood.calibration import TOOD
    from tood.decision import Conformal, PredictionSets
    from tood.errors import ToodError
    from tood.partition import Partition


@click.command()
@click.option("--logits", type=FILE, required=True, help=LOGITS)
@click.option("--labels", type=FILE, help="Labels [n], logit columns.  [default: the column labels of --logits]")
@click.option("--tasks", required=True, help="Columns per task: '[[0, 1], [2, 3]]', a JSON file, or a run's manifest.")
@click.option("--out", type=FILE, required=True, help="The safetensors file to write.")
@click.option(
    "--variant", type=click.Choice(get_args(Variant)), help="How channels are normalised.  [default: background]"
)
@click.option("--margin", type=float, help="Weight of the lead over the second channel.  [default: 0.5]")
@click.option(
    "--reference",
    type=click.Choice(get_args(Reference)),
    help="Task that sets the units of the score.  [default: latest]",
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
@click.option("--per-class", is_flag=True, default=None, help="Hold alpha per class; rejects fewer unknown inputs.")
@click.option(
    "--ties", type=click.Choice(["conservative", "randomized"]), help="How equal scores count.  [default: conservative]"
)
@click.option(
    "--source",
    type=click.Choice(["held_out", "reserved", "memory", "train"]),
    help="Where the samples for decisions come from.  [default: held_out]",
)
@invalid_option("leave them out")
@click.option(
    "--seed", type=click.IntRange(0), default=0, show_default=True, help="Seed of the split and of random ties."
)
@click.option("--model", type=FILE, help="Keep the SHA-256 of this file, the network's weights, as metadata.")
@click.option("--parent", type=FILE, help="Keep name and SHA-256 of this file, the decision of the version before.")
@click.option("--metadata", multiple=True, metavar="NAME=TEXT", help="A text to keep in the file; may be repeated.")
@click.option("--force", is_flag=True, help="Overwrite --out if it exists.")
@click.option("--quiet", is_flag=True, help="Print neither warnings nor the table.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(
    out: Path,
    as_json: bool,
    quiet: bool,
    force: bool,
    model: Path | None,
    parent: Path | None,
    metadata: tuple[str, ...],
    **settings: Any,
) -> None:
    """Fit a calibrator to labelled in-distribution logits and write it to one file.

    With --holdout, --conformal or --folds the file also holds calibration scores, and `tood score --alpha` can accept
    or reject with a guarantee; the samples must then be ones the network was not trained on.

    Example: tood calibrate --logits cal.csv --tasks '[[0, 1], [2, 3]]' --out cal.safetensors --holdout 0.5
    """
    inputs = [settings["logits"], settings["labels"], settings["conformal"], Path(settings["tasks"])]
    if out.resolve() in {path.resolve() for path in inputs if path}:
        raise click.UsageError(f"{out} is an input; the output would overwrite it")
    if out.exists() and not force:
        raise click.UsageError(f"{out} exists; give --force to overwrite it")
    if wrong := [pair for pair in metadata if "=" not in pair]:
        raise click.UsageError(f"--metadata: expected NAME=TEXT, found {wrong[0]!r}")
    with warnings_as_lines(quiet):
        fitted, left_out = _fit(**settings)
    cal: Any = getattr(fitted, "cal", fitted)
    cal.metadata_ = dict(pair.split("=", 1) for pair in metadata)
    if model is not None:
        cal.metadata_["model_sha256"] = sha256(model)
    if parent is not None:
        cal.metadata_ |= {"parent": str(parent), "parent_sha256": sha256(parent)}
    fitted.save(out)
    rows = [
        {**{name: values[t] for name, values in cal.statistics_.items()}, **diagnostics._asdict()}
        for t, diagnostics in enumerate(cal.diagnostics_)
    ]
    if as_json:
        metrics = {"out": str(out), "kind": type(fitted).__name__, "left_out": left_out, "tasks": rows}
        click.echo(json.dumps(for_json(metrics), indent=2))
    elif not quiet:
        _show(rows)
        click.echo(ADVICE)
        invalid = f"; invalid rows left out: {left_out:,}" if left_out else ""
        click.echo(f"{out}: {'calibrator and calibration scores' if fitted is not cal else 'calibrator'}{invalid}")
        if fitted is not cal:
            from tood.decision.facts import decision_facts

            for name, value in decision_facts(fitted, 0.05).items():
                click.echo(f"{name}: {value}")


def _show(rows: list[dict[str, Any]]) -> None:
    """Statistics and diagnostics per task."""
    titles = {"task": 5, "samples": 9, "median": 10, "MAD": 9, "AUROC": 7, "95 % interval": 15, "gap": 9}
    click.echo("".join(f"{title:>{width}}" for title, width in titles.items()) + "  channel   trust")
    for row in rows:
        known = row["auroc"] == row["auroc"]
        auroc, between = (f"{row['auroc']:.3f}", f"{row['low']:.3f}–{row['high']:.3f}") if known else ("–", "–")
        trust = f"{row['trust']:.2f}" if known else "–"
        click.echo(
            f"{row['task']:>5}{row['samples']:>9}{row['median']:>10.3f}{row['mad']:>9.3f}{auroc:>7}{between:>15}"
            f"{row['gap']:>9.3f}  {'alive' if row['alive'] else 'dead':<7}{trust:>8}"
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
    variant: Any,
    margin: float | None,
    reference: Any,
    holdout: float | None,
    conformal: Path | None,
    folds: int | None,
    sets: Any,
    invalid: str,
    **settings: Any,
) -> tuple[TOOD | Conformal | PredictionSets, int]:
    """The calibrator, with calibration scores if requested, and the number of rows left out."""
    import numpy as np

    from tood.calibration import TOOD
    from tood.decision import Conformal, PredictionSets

    choices = sum(choice is not None for choice in (holdout, conformal, folds))
    if choices > 1:
        raise click.UsageError("give one of --holdout, --conformal and --folds")
    settings = {name: value for name, value in settings.items() if value is not None}
    unused = [name.replace("_", "-") for name in ("per_task", "per_class", "ties", "source") if name in settings]
    unused += ["sets"] if sets is not None else []
    if unused and not choices:
        raise click.UsageError(f"--{unused[0]} is about decisions: give --holdout, --conformal or --folds too")
    if sets is not None and folds is not None:
        raise click.UsageError("--sets: expected --holdout or --conformal, found --folds")
    if conformal is not None and conformal.exists() and logits.exists() and conformal.samefile(logits):
        raise _same_samples(conformal, logits)
    partition = read_tasks(tasks)
    parameters = {"variant": variant, "margin": margin, "reference": reference}
    cal = TOOD(partition, **{name: value for name, value in parameters.items() if value is not None})
    rows, columns, left_out = _read(logits, labels, partition, invalid)

    def decision(fitted: TOOD, *samples: Any) -> Conformal | PredictionSets:
        if sets is None:
            return Conformal(fitted, **settings).fit(*samples)
        per: Any = "class" if settings.get("per_class") else "task" if settings.get("per_task") else None
        return PredictionSets(fitted, sets, per=per).fit(*samples)

    if folds is not None:
        return Conformal.cross(cal, rows, columns, folds=folds, **settings), left_out
    if conformal is not None:
        more, more_columns, more_left_out = _read(conformal, None, partition, invalid)
        _check_separate(logits, rows, conformal, more)
        return decision(cal.fit(rows, columns), more, more_columns), left_out + more_left_out
    if holdout is not None:
        # Rows are drawn regardless of their labels, so that kept and other samples stay exchangeable.
        order = np.random.default_rng(settings["seed"]).permutation(len(columns))
        kept, rest = np.split(order, [round(holdout * len(columns))])
        return decision(cal.fit(rows[rest], columns[rest]), rows[kept], columns[kept]), left_out
    return cal.fit(rows, columns), left_out


def _check_separate(logits: Path, rows: FloatArray, conformal: Path, more: FloatArray) -> None:
    """Raise if the samples for decisions are calibration samples; warn if some are."""
    import warnings
    from collections import Counter

    import numpy as np

    # Adding 0 makes -0 equal 0 in bytes too.
    used, kept = (Counter(row.tobytes() for row in np.asarray(array, np.float64) + 0.0) for array in (rows, more))
    shared = (used & kept).total()
    if shared and shared == len(more):
        raise _same_samples(conformal, logits)
    if shared:
        warnings.warn(
            f"{conformal}: {shared:,} of {len(more):,} rows of logits are in {logits} too; if they are the same "
            "samples, more than alpha of the known inputs may be rejected",
            UserWarning,
            stacklevel=2,
        )


def _same_samples(conformal: Path, logits: Path) -> ToodError:
    from tood.errors import ToodError

    return ToodError(
        f"--conformal: expected samples that were not used for calibration, found those of {logits} in {conformal}; "
        "give another file, or --holdout 0.5 or --folds 5 in its place"
    )


def _read(path: Path, labels: Path | None, partition: Partition, invalid: Any) -> tuple[FloatArray, IntArray, int]:
    """Logits, labels and the number of invalid rows left out; messages give row numbers of the file."""
    from tood.arrays import label_columns
    from tood.deploy.logit_files import read_labelled, valid_rows
    from tood.errors import ToodError

    logits, columns = read_labelled(path, labels)
    if logits.shape[1] != partition.columns:
        raise ToodError(f"{path}: expected {partition.columns} columns, those of the tasks, found {logits.shape[1]}")
    try:
        label_columns(columns, partition.columns, len(columns))
    except ToodError as error:
        raise ToodError(f"{labels or path}: {error}") from error
    valid = valid_rows(logits, invalid, path)
    return logits[valid], columns[valid], int((~valid).sum())

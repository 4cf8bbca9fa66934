"""``tood calibrate``: turn calibration logits into one small file that scores, and decides."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from tood.arrays import FloatArray, IntArray
    from tood.calibration import TOOD
    from tood.decision import Conformal

__all__ = ["command"]

SHARE = click.FloatRange(0, 1, min_open=True, max_open=True)


@click.command()
@click.option("--logits", type=click.Path(path_type=Path), required=True, help="An .npz with logits [n, C] and labels.")
@click.option(
    "--tasks", type=click.Path(path_type=Path), required=True, help="JSON: [[0, 1], [2, 3]], columns by task."
)
@click.option("--out", type=click.Path(path_type=Path), required=True, help="The safetensors file to write.")
@click.option(
    "--variant",
    type=click.Choice(["robust_anchor", "mean_shift", "auto", "temperature", "none"]),
    default="robust_anchor",
    show_default=True,
    help="How channels are normalised.",
)
@click.option("--margin", default=0.5, show_default=True, help="Weight of the lead over the second channel.")
@click.option(
    "--reference",
    type=click.Choice(["latest", "oldest", "widest", "mean"]),
    default="latest",
    show_default=True,
    help="Whose units the score has.",
)
@click.option("--holdout", type=SHARE, help="Keep this share of the samples for p-values, such as 0.5.")
@click.option("--conformal", type=click.Path(path_type=Path), help="Another .npz whose samples are for p-values.")
@click.option("--folds", type=int, help="Use every sample for both, in so many folds (at most 2 alpha is rejected).")
@click.option(
    "--per-task", type=click.Choice(["winning", "true"]), help="Hold alpha for each task.  [default: overall]"
)
@click.option(
    "--ties", type=click.Choice(["conservative", "randomized"]), help="Equal scores.  [default: conservative]"
)
@click.option(
    "--source",
    type=click.Choice(["held_out", "reserved", "memory", "train"]),
    help="Where the samples for p-values come from.  [default: held_out]",
)
@click.option("--seed", default=0, show_default=True, help="Of the split and of random ties.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(logits: Path, tasks: Path, out: Path, as_json: bool, **settings: Any) -> None:
    """Fit a calibrator to labelled in-distribution logits and write it to one file.

    With --holdout, --conformal or --folds the file also holds calibration scores, and `tood score --alpha` can accept
    or reject with a guarantee; the samples must then be ones the network was not trained on.

    Example: tood calibrate --logits cal.npz --tasks tasks.json --out cal.safetensors --holdout 0.5
    """
    if out.resolve() in {path.resolve() for path in (logits, tasks, settings["conformal"]) if path}:
        raise click.UsageError(f"{out} is an input, and the output would take its place")
    with warnings.catch_warnings():
        warnings.simplefilter("once", UserWarning)
        warnings.showwarning = lambda message, *_: click.echo(f"tood: warning: {message}", err=True)
        model = _fit(logits, _read_tasks(tasks), **settings)
    model.save(out)
    cal: Any = getattr(model, "cal", model)
    rows = [
        {"task": t, **{name: float(values[t]) for name, values in cal.statistics_.items()}}
        for t in range(len(cal.partition_))
    ]
    if as_json:
        click.echo(json.dumps({"out": str(out), "kind": type(model).__name__, "tasks": rows}, indent=2))
        return
    click.echo(f"{'task':>5}{'samples':>9}{'median':>10}{'MAD':>9}{'mean':>10}{'std':>9}")
    for row in rows:
        click.echo(
            f"{row['task']:>5}{row['count']:>9.0f}{row['median']:>10.3f}{row['mad']:>9.3f}{row['mean']:>10.3f}"
            f"{row['std']:>9.3f}"
        )
    click.echo(f"{out}: {'calibrator and calibration scores' if model is not cal else 'calibrator'}")


def _fit(
    file: Path,
    tasks: Any,
    variant: Any,
    margin: float,
    reference: Any,
    holdout: float | None,
    conformal: Path | None,
    folds: int | None,
    **settings: Any,
) -> TOOD | Conformal:
    from tood.calibration import TOOD
    from tood.decision import Conformal

    choices = sum(choice is not None for choice in (holdout, conformal, folds))
    given = [name.replace("_", "-") for name in ("per_task", "ties", "source") if settings[name] is not None]
    if choices > 1:
        raise click.UsageError("give one of --holdout, --conformal and --folds")
    if given and not choices:
        raise click.UsageError(f"--{given[0]} is about p-values: give --holdout, --conformal or --folds too")
    settings = {name: value for name, value in settings.items() if value is not None}
    logits, labels = _read(file)
    cal = TOOD(tasks, variant=variant, margin=margin, reference=reference)
    if folds is not None:
        return Conformal.cross(cal, logits, labels, folds=folds, **settings)
    if conformal is not None:
        return Conformal(cal.fit(logits, labels), **settings).fit(*_read(conformal))
    if holdout is not None:
        kept, rest = _split(labels, holdout, settings["seed"])
        return Conformal(cal.fit(logits[rest], labels[rest]), **settings).fit(logits[kept], labels[kept])
    return cal.fit(logits, labels)


def _split(labels: IntArray, share: float, seed: int) -> tuple[IntArray, IntArray]:
    """Rows held out, drawn at random whatever their label so that they stay exchangeable, and the other rows."""
    import numpy as np

    order = np.random.default_rng(seed).permutation(len(labels))
    return np.split(order, [round(share * len(labels))])  # type: ignore[return-value]


def _read(path: Path) -> tuple[FloatArray, IntArray]:
    from tood.errors import ToodError
    from tood.files import read_npz

    found, _ = read_npz(path)
    if not {"logits", "labels"} <= found.keys():
        raise ToodError(f"{path}: expected the arrays logits and labels, found {', '.join(found) or 'none'}")
    logits, labels = found["logits"], found["labels"]
    if logits.ndim != 2 or labels.shape != logits.shape[:1]:
        raise ToodError(f"{path}: expected logits [n, C] and labels [n], found {logits.shape} and {labels.shape}")
    return logits, labels


def _read_tasks(path: Path) -> Any:
    """A list of lists of columns, or a run's ``manifest.json``, which has one."""
    from tood.errors import ToodError
    from tood.partition import Partition

    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        return Partition.from_json(json.dumps(found["tasks"] if isinstance(found, dict) else found))
    except (OSError, KeyError, ValueError) as error:
        raise ToodError(f"{path}: {error}") from error

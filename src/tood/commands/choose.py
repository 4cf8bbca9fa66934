"""``tood choose``: the score that finds most unknown inputs in unlabelled traffic."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tood.commands._console import FILE, JSON, LOGITS, SHARE, read_tasks, warnings_as_lines
from tood.errors import located

if TYPE_CHECKING:
    from tood.choose import Choice
    from tood.outputs import Outputs

VARIANTS: tuple[Any, ...] = ("mean_shift", "robust_anchor")  # the paper's
WITH_FEATURES = ("typicality", "tood_joint", "mds", "rmds", "knn")


@click.command()
@click.argument("calibration", type=FILE)
@click.option("--known", type=FILE, required=True, help=f"Known samples not in CALIBRATION. {LOGITS}")
@click.option("--traffic", type=FILE, required=True, help="Unlabelled inputs, in the same form.")
@click.option(
    "--tasks", help="Columns per task, if CALIBRATION holds samples: '[[0, 1], [2, 3]]', a JSON file, or a manifest."
)
@click.option("--default", default="tood", show_default=True, help="Kept unless another is better beyond doubt.")
@click.option("--alpha", type=SHARE, default=0.05, show_default=True, help="One minus the level of the intervals.")
@click.option("--quiet", is_flag=True, help="Print neither warnings nor the table, only the name.")
@JSON
def command(
    calibration: Path, known: Path, traffic: Path, tasks: str | None, quiet: bool, as_json: bool, **settings: Any
) -> None:
    """Choose the score by unlabelled traffic: which one separates held-out known samples from it best?

    CALIBRATION is what `tood calibrate` wrote, or a file of logits and labels. Compared are TOOD, the paper's variants,
    energy and the largest logit. If all three are .npz files with features, detectors that read them are compared too.
    The default is kept unless another score is better beyond doubt.

    Example: tood choose cal.safetensors --known held-out.npz --traffic last-week.npz
    """
    from tood.choose import choose

    with warnings_as_lines(quiet):
        sets = _read(known), _read(traffic)
        candidates = _candidates(calibration, tasks, all(part.features is not None for part in sets))
        choice = choose(candidates, *sets, **settings)
    if as_json:
        click.echo(json.dumps(choice.to_dict(), indent=2))
    elif quiet:
        click.echo(choice.name)
    else:
        _show(choice)


def _candidates(calibration: Path, tasks: str | None, has_features: bool) -> dict[str, Any]:
    """Fitted scores by name."""
    from tood import detectors
    from tood.calibration import TOOD
    from tood.decision.facts import load_decision
    from tood.deploy.logit_files import read_labelled

    samples = None
    if calibration.suffix == ".safetensors":
        model: Any = load_decision(calibration)
        cal = getattr(model, "cal", model)
    elif tasks is None:
        raise click.UsageError(f"--tasks: {calibration} holds samples, so the columns of each task are needed")
    else:
        samples = _read(calibration, read_labelled(calibration, None)[1])
        cal = TOOD(read_tasks(tasks)).fit(samples.logits, samples.labels)
    paper = {name: TOOD.from_statistics(cal.partition_, cal.statistics_, variant=name) for name in VARIANTS}
    candidates = {"tood": cal, **paper, **{name: detectors.create(name) for name in ("energy", "maxlogit")}}
    for name in WITH_FEATURES if has_features and samples and samples.features is not None else ():
        candidates[name] = detectors.create(name).fit(samples, partition=cal.partition_)
    return candidates


def _read(path: Path, labels: Any = None) -> Outputs:
    """Logits of a file, and the features of an ``.npz`` file."""
    from tood.arrays import finite
    from tood.deploy.logit_files import LogitsFile
    from tood.outputs import Outputs
    from tood.storage.npz import npz_member, npz_names

    has_features = path.suffix == ".npz" and "features" in npz_names(path)
    with located(path):
        logits = finite(LogitsFile(path).read(), "logits")
    return Outputs(logits, npz_member(path, "features") if has_features else None, labels)


def _show(choice: Choice) -> None:
    """Candidates, best first, and the answer."""
    known, traffic = choice.rows
    click.echo(f"AUROC of {known:,} known samples against {traffic:,} of traffic, and the gain over {choice.default}:")
    for row in choice.candidates:
        gain = f"{row.difference:+.4f} ({row.low:+.4f} to {row.high:+.4f})" if row.name != choice.default else "default"
        click.echo(f"  {row.name:<14}  {row.auroc:.4f}  {gain}{'  better' if row.better else ''}")
    click.echo(choice.text)

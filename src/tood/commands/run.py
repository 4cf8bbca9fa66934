"""``tood run``: one stream, one learner, from training to metrics."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tood.commands._console import FILE, complete_names
from tood.storage.durations import duration

if TYPE_CHECKING:
    from tood.integrations.trackers import Tracking
    from tood.learners import Progress
    from tood.outputs import Run
    from tood.runs import RunConfig

NAMED = "a name, or package.module:"
TRACKS = "calibration, memory, all or paper; several separated by commas.  [default: calibration, or the preset's]"
LOGITS = click.Choice(["corrected", "raw", "both"])
RESERVED = "[default: as many as for calibration; none with paper and released]"
STORES = click.Choice(["all", "metrics"])
SETTING = "A setting of the learner; may be repeated."
LOGGED = "Also log metrics to tensorboard, mlflow or wandb; may be repeated."


@click.command()
@click.argument("file", type=FILE, required=False)
@click.option("--stream", shell_complete=complete_names("streams"), help=f"Stream: {NAMED}factory.  [default: digits]")
@click.option("--learner", shell_complete=complete_names("learners"), help=f"Learner: {NAMED}Class.  [default: icarl]")
@click.option("--preset", help="cpu, paper, released, frozen or smoke.  [default: cpu, or frozen with --frozen]")
@click.option("--seed", type=click.IntRange(0), help="Seed of every random choice.  [default: 0]")
@click.option("--order", help="Class order: label, seed (the run's), or a seed.  [default: label]")
@click.option("--tasks", help="Number of tasks, or classes of each: 50,10,10.  [default: the stream's]")
@click.option("--ood", help="OOD sets to test against, separated by commas.  [default: all of the stream]")
@click.option("--network", help="Name of the network.  [default: the preset's]")
@click.option("--frozen", is_flag=True, default=None, help="Keep the network as it is; learn on its features.")
@click.option(
    "--adapter", type=click.IntRange(-1), help="With --frozen: trained hidden units, or 0.  [default: the preset's]"
)
@click.option("--track", help=f"Data that every detector is fitted on: {TRACKS}")
@click.option(
    "--calibration-size", type=click.IntRange(0), help="B, all classes.  [default: the paper's, or 10 per class]"
)
@click.option("--reserve", type=click.IntRange(-1), help=f"Samples per class never trained on.  {RESERVED}")
@click.option("--detectors", shell_complete=complete_names("detectors"), help=f"Detectors, by commas: {NAMED}Class.")
@click.option("--logits", type=LOGITS, help="With a corrected head (BiC): the logits to score.  [default: both]")
@click.option("--store", type=STORES, help="metrics: delete outputs and checkpoints once measured.  [default: all]")
@click.option("--set", "learner_settings", multiple=True, metavar="NAME=VALUE", help=SETTING)
@click.option("--device", help="auto, cpu, cuda or mps.  [default: auto]")
@click.option("--precision", help="32-true, bf16-mixed, 16-mixed, or auto: bf16-mixed if supported.  [default: auto]")
@click.option("--threads", type=click.IntRange(1), help="Threads of torch on the CPU.  [default: 1]")
@click.option("--out", type=FILE, help="The run directory.  [default: runs/NAME]")
@click.option("--dry-run", is_flag=True, help="Print the plan with the estimated time, and stop.")
@click.option("--log-to", multiple=True, envvar="TOOD_LOG_TO", metavar="TRACKER", help=LOGGED)
@click.option("--quiet", is_flag=True, help="Print nothing but errors.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def command(
    file: Path | None,
    learner_settings: tuple[str, ...],
    out: Path | None,
    dry_run: bool,
    log_to: tuple[str, ...],
    quiet: bool,
    as_json: bool,
    **options: Any,
) -> None:
    """Train a learner on a stream, evaluate every step with every detector, and measure.

    Settings come from FILE (YAML), if given, then from the options. A run may be killed at any time; the same command
    resumes it.

    \b
    Examples:
      tood run --stream digits --learner icarl
      tood run --stream cifar10 --learner bic --preset cpu --seed 1 --set epochs=5
      tood run --stream mypackage.data:birds --learner mypackage.methods:Mine
      tood run --stream cifar10 --learner bic --preset paper --dry-run
      tood run --stream cifar100 --learner der --frozen
    """
    from tood.commands._training import training_progress
    from tood.errors import ToodError
    from tood.runs.config import SWEEP, RunConfig
    from tood.runs.plan import plan
    from tood.runs.stages import run
    from tood.storage.yaml_files import parse_settings, read_yaml

    values = read_yaml(file) if file else {}
    values |= {name: value for name, value in options.items() if value is not None}
    if learner_settings:
        try:
            values["settings"] = {**(values.get("settings") or {}), **parse_settings(learner_settings)}
        except ToodError as error:
            raise click.UsageError(str(error)) from error
    config = RunConfig.from_mapping(values, where=str(file or "the command line"))
    folder = out or Path("runs") / config.name
    if dry_run:
        planned = plan(config, folder)
        lines = "\n".join(f"{name:<12} {value}" for name, value in planned.items())
        click.echo(json.dumps(planned, indent=2) if as_json else lines)
        return
    with (
        training_progress(quiet=quiet or as_json) as (progress, say),
        _tracking(log_to, config, folder) as tracked,
    ):

        def show(event: Progress) -> None:
            progress(event)
            if tracked:
                tracked.progress(event)

        result = run(config, folder, say=say, progress=show, on_step=tracked.step if tracked else None)
    if int(os.environ.get("RANK", 0)):  # under torchrun the first process evaluates, and may not be done yet
        return
    if as_json:
        from tood.evaluation.metrics_file import load_metrics
        from tood.report.summary import run_figures

        figures: dict[str, dict[str, float]] = {}
        for (detector, metric), value in run_figures(load_metrics(folder), result.calibration).items():
            figures.setdefault(detector, {})[metric] = value
        click.echo(json.dumps({"run": str(folder), "percent": figures}, indent=2))
    elif not quiet:
        if SWEEP not in os.environ:
            _show(result)
        click.echo(f"processor time: {duration(time.process_time())}")
        click.echo(f"Next: `tood report {shlex.quote(str(folder))}` writes the page, with --full every table.")


def _show(result: Run) -> None:
    """Print the card and the ten best scores."""
    from tood.audit import ensure_verdict
    from tood.report.gather import MeasuredRun
    from tood.report.render import print_results
    from tood.report.tables import best_tables

    one = MeasuredRun(result)
    print_results([one], {result.path: ensure_verdict(result)}, best_tables([(result, one.table)]))


def _tracking(
    names: tuple[str, ...], config: RunConfig, folder: Path
) -> contextlib.AbstractContextManager[Tracking | None]:
    """The named trackers, or None; under torchrun only the first process, which evaluates, tracks."""
    if not names or int(os.environ.get("RANK", 0)):
        return contextlib.nullcontext()
    from tood.integrations.trackers import Tracking

    return Tracking(names, config.name, folder, config.to_mapping())

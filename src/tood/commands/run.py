"""``tood run``: one stream, one learner, from training to measured figures."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import click


@click.command()
@click.argument("file", type=click.Path(path_type=Path), required=False)
@click.option("--stream", help="The stream's name.  [default: digits]")
@click.option("--learner", help="The learner's name, such as icarl or icarl+ber.  [default: icarl]")
@click.option("--preset", help="Whose settings: cpu, frozen, paper, released or smoke.  [default: cpu, or frozen]")
@click.option("--seed", type=int, help="Of everything random.  [default: 0]")
@click.option("--order", help="Class order: label, or the seed of a permutation.")
@click.option("--tasks", type=int, help="The number of tasks, where it is not the stream's own.")
@click.option("--network", help="The network's name, where it is not the preset's.")
@click.option("--frozen", is_flag=True, default=None, help="Keep the network as it is; learn on its features.")
@click.option("--adapter", type=int, help="With --frozen: width of a trained hidden layer; 0 for none.")
@click.option("--calibration", help="Where the calibration set comes from: train, memory or reserved.")
@click.option("--calibration-size", type=int, help="B, over all classes.")
@click.option("--reserve", type=int, help="Samples a class set aside at arrival.")
@click.option("--fit", help="What detectors fit on: current, memory or all.")
@click.option("--detectors", help="Names, separated by commas.")
@click.option("--set", "pairs", multiple=True, metavar="NAME=VALUE", help="A learner setting; may be repeated.")
@click.option("--device", help="auto, cpu, cuda or mps.  [default: auto]")
@click.option("--precision", help="32-true, bf16-mixed or auto: mixed on a GPU that can.  [default: auto]")
@click.option("--threads", type=click.IntRange(1), help="Of torch on the CPU.  [default: 1]")
@click.option("--out", type=click.Path(path_type=Path), help="The run directory.  [default: runs/NAME]")
@click.option("--dry-run", is_flag=True, help="Print the plan with estimated time and disk, and stop.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def command(
    file: Path | None, pairs: tuple[str, ...], out: Path | None, dry_run: bool, as_json: bool, **options: Any
) -> None:
    """Train a learner on a stream, evaluate every step with every detector, and measure.

    Settings come from FILE (YAML) where given, then from the options. A run may be killed at any time; the same
    command goes on where it was.

    \b
    Examples:
      tood run --stream digits --learner icarl
      tood run --stream cifar10 --learner bic --preset cpu --seed 1 --set epochs=5
      tood run --stream cifar10 --learner bic --preset paper --dry-run
      tood run --stream cifar100 --learner der --network efficientnet_lite0 --frozen
    """
    from tood.report.live import training_progress
    from tood.runs.config import RunConfig, parse_settings, read_yaml
    from tood.runs.stages import plan, run

    values = read_yaml(file) if file else {}
    values |= {name: value for name, value in options.items() if value is not None}
    if str(values.get("order", "")).isdigit():
        values["order"] = int(values["order"])
    if pairs:
        values["settings"] = {**(values.get("settings") or {}), **parse_settings(pairs)}
    config = RunConfig.from_mapping(values, where=str(file or "the command line"))
    folder = out or Path("runs") / config.name
    if dry_run:
        found = plan(config, folder)
        click.echo(json.dumps(found, indent=2) if as_json else "\n".join(f"{k:<18} {v}" for k, v in found.items()))
        return
    with training_progress(quiet=as_json) as (progress, say):
        result = run(config, folder, say, progress)
    if int(os.environ.get("RANK", 0)):  # under torchrun the first process evaluates, and may not be done yet
        return
    if as_json:
        from tood.report.summary import run_figures
        from tood.runs.metrics_file import load_metrics

        figures: dict[str, dict[str, float]] = {}
        for (detector, metric), value in run_figures(load_metrics(folder), result.calibration).items():
            figures.setdefault(detector, {})[metric] = value
        click.echo(json.dumps({"run": str(folder), "percent": figures}, indent=2))
    else:
        click.echo(f"{folder}: every figure is in {result.metrics_path.name}; `tood report {folder}` shows them")

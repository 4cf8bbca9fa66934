"""What a loud channel does to the score of a run: AUROC at some steps, before and after the default lowers it.

    python benchmarks/dead_channels.py RUN --steps 8,12,22

A dead channel keeps its raw energy (:meth:`tood.TOOD.channels`). If that is above the re-centred energies of live
channels, it would win for most inputs: it is loud, and the default lowers it. "Live only" leaves dead channels out.
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

from tood import TOOD, energy
from tood.calibration import Channels, shrunk_channels
from tood.energy import with_lead
from tood.metrics import auroc, near_far_mean
from tood.runs import Run, Step

HEAD = ("step", "dead channels", "loud", "won by dead ones", "energy", "not lowered", "default", "live only")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run")
    parser.add_argument("--steps", required=True, help="separated by commas")
    arguments = parser.parse_args()
    run = Run(arguments.run)
    for row in (HEAD, ["---"] * len(HEAD), *(cells(Step(run, int(s))) for s in arguments.steps.split(","))):
        print(f"| {' | '.join(row)} |")


def cells(step: Step) -> list[str]:
    """A row of the table."""
    calibration = step.calibration(step.run.calibration)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        cal = TOOD(step.partition).fit(calibration.logits, calibration.labels)
    statistics, default = cal.statistics_, cal.channels()
    location, scale = shrunk_channels(statistics, loud=1e9)
    not_lowered = Channels(location, scale, 1.0, 0.0, (statistics["mean"] + statistics["std"] - location) / scale)
    live = np.array([channel.alive for channel in cal.diagnostics_])

    def normalised(logits: Any, channels: Channels) -> Any:
        return channels.normalised(cal.task_energies(np.asarray(logits)).astype(np.float64))

    scores: list[Callable[[Any], Any]] = [
        lambda logits: energy(np.asarray(logits)),
        lambda logits: with_lead(normalised(logits, not_lowered), cal.margin),
        lambda logits: with_lead(normalised(logits, default), cal.margin),
    ]
    if live.any():
        scores.append(lambda logits: with_lead(normalised(logits, default)[:, live], cal.margin))
    won = (~live)[normalised(step.test.logits, not_lowered).argmax(axis=1)].mean()
    counts = [f"{(~live).sum()} of {len(live)}", str((default.location != location).sum()), f"{won:.0%}"]
    figures = [f"{100 * against_ood(step, score):.1f}" for score in scores]
    return [str(step.index), *counts, *figures, *["–"] * (4 - len(figures))]


def against_ood(step: Step, score: Callable[[Any], Any]) -> float:
    """AUROC of the test samples, (mean of near + mean of far) / 2."""
    known = score(step.test.logits)
    values = [auroc(known, score(outputs.logits)) for outputs in step.ood.values()]
    return float(near_far_mean(values, [step.run.ood[name] for name in step.ood]))


if __name__ == "__main__":
    main()

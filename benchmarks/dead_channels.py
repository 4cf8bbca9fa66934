"""What a dead channel above the live ones does to the score of a run: AUROC at some steps, with and without it.

    python benchmarks/dead_channels.py RUN --steps 8,12,22

A dead channel keeps its raw energy (:func:`tood.TOOD.channels`). If that is above the re-centred energies of live
channels, it wins for most inputs. The last two columns leave dead channels out.
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

from tood import TOOD, energy
from tood.energy import with_lead
from tood.metrics import auroc, near_far_mean
from tood.runs import Run, Step

HEAD = ("step", "dead channels", "won by them", "energy", "default", "margin 0", "live only", "live only, margin 0")


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
    live = np.array([channel.alive for channel in cal.diagnostics_])

    def normalised(logits: Any) -> Any:
        return cal.channels().normalised(cal.task_energies(np.asarray(logits)).astype(np.float64))

    scores: list[Callable[[Any], Any]] = [
        lambda logits: energy(np.asarray(logits)),
        lambda logits: with_lead(normalised(logits), 0.5),
        lambda logits: with_lead(normalised(logits), 0.0),
    ]
    if live.any():
        scores += [
            lambda logits: with_lead(normalised(logits)[:, live], 0.5),
            lambda logits: with_lead(normalised(logits)[:, live], 0.0),
        ]
    won = (~live)[normalised(step.test.logits).argmax(axis=1)].mean()
    counts = [str(step.index), f"{(~live).sum()} of {len(live)}", f"{won:.0%}"]
    figures = [f"{100 * against_ood(step, score):.1f}" for score in scores]
    return [*counts, *figures, *["–"] * (len(HEAD) - len(counts) - len(figures))]


def against_ood(step: Step, score: Callable[[Any], Any]) -> float:
    """AUROC of the test samples, (mean of near + mean of far) / 2."""
    known = score(step.test.logits)
    values = [auroc(known, score(outputs.logits)) for outputs in step.ood.values()]
    return float(near_far_mean(values, [step.run.ood[name] for name in step.ood]))


if __name__ == "__main__":
    main()

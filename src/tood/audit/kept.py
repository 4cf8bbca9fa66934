"""Coverage forgetting: what becomes of a decision that is kept while the model goes on learning."""

from __future__ import annotations

import warnings
from typing import Any, NamedTuple

import numpy as np

from tood.calibration import TOOD
from tood.decision import Conformal
from tood.errors import ToodError
from tood.outputs import Run, Step

__all__ = ["ALPHA", "Kept", "kept_decision"]

ALPHA = 0.1  # the share of known inputs that the decisions may reject


class Kept(NamedTuple):
    """Shares of inputs of old tasks accepted, and of unknown inputs rejected; means over old tasks.

    Attributes
    ----------
    at_first:
        The decision of each task's own step, at that step.
    kept:
        The same decisions at the last step, on the logits of the classes they know.
    made_again:
        The decision of the last step.
    """

    at_first: tuple[float, float]
    kept: tuple[float, float]
    made_again: tuple[float, float]


def kept_decision(run: Run, calibration: str | None = None) -> Kept | None:
    """Coverage and rejection of kept decisions, or None if there is one task, no OOD set or too few samples.

    At each step half of the calibration set, drawn at random, fits TOOD, and the other half sets the decision.
    """
    last = Step(run, len(run.partition) - 1)
    if last.index == 0 or not run.ood:
        return None
    rows = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # a kept decision looks at another network, as it is meant to
        try:
            again = _decision(last, calibration)
            for task in range(last.index):
                step = Step(run, task)
                decision = _decision(step, calibration)
                known = np.sort(np.concatenate(last.partition.tasks[: task + 1]))
                shares = [_shares(decision, step, task), _shares(decision, last, task, known)]
                rows.append([*shares, _shares(again, last, task)])
        except ToodError:  # too few calibration samples for any decision
            return None
    return Kept(*(tuple(pair) for pair in np.mean(rows, axis=0).tolist()))


def _decision(step: Step, calibration: str | None) -> Conformal:
    samples = step.calibration(calibration)
    first, second = np.array_split(np.random.default_rng(0).permutation(len(samples)), 2)
    cal = TOOD(step.partition).fit(samples.logits[first], samples.labels[first])
    return Conformal(cal).fit(samples.logits[second])


def _shares(decision: Conformal, step: Step, task: int, columns: Any = slice(None)) -> tuple[float, float]:
    """Known inputs of a task accepted; unknown inputs rejected, the mean over groups of OOD sets."""
    accepted = decision.decide(step.test.logits[step.test_tasks() == task][:, columns], ALPHA).accept.mean()
    groups: dict[str, list[float]] = {}
    for name, group in step.run.ood.items():
        reject = 1 - decision.decide(step.ood[name].logits[:, columns], ALPHA).accept.mean()
        groups.setdefault(group, []).append(float(reject))
    return float(accepted), float(np.mean([np.mean(shares) for shares in groups.values()]))

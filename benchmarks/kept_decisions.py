"""Coverage forgetting: what becomes of a conformal decision that is kept while the model goes on learning."""

from __future__ import annotations

import warnings
from typing import Literal, NamedTuple, TypeAlias, get_args

import numpy as np

from tood.arrays import FloatArray, IntArray
from tood.calibration import TOOD
from tood.decision import Conformal
from tood.errors import UnknownNameError
from tood.metrics import Trajectory
from tood.outputs import Run, Step

__all__ = ["Coverage", "coverage"]

Keep: TypeAlias = Literal["decision", "threshold", "nothing"]


class Coverage(NamedTuple):
    """Trajectories ``[t, i]`` of a decision made at step i and used at step t, on the samples of task i."""

    coverage: Trajectory  # share of the test samples of task i that are accepted
    rejection: Trajectory  # share of each OOD set that is rejected, [t, i, d]
    accuracy: Trajectory  # of task i, for comparison


def coverage(run: Run, keep: Keep = "decision", alpha: float = 0.1, seed: int = 0) -> Coverage:
    """Coverage and rejection of unknowns along a run.

    At each step half of the calibration set, drawn at random, fits TOOD, the other half sets the decision.

    Parameters
    ----------
    run:
        A run directory. Its calibration set must be held out, as ``tood run --reserve`` makes it.
    keep:
        What is kept from step i: the whole ``"decision"`` (calibrator and threshold, on the columns of the classes
        known then), its ``"threshold"`` alone, with a calibrator fitted at step t, or ``"nothing"``: the decision is
        made again at each step.
    alpha:
        The share of known inputs that a decision may reject.
    seed:
        Seed of the halves.
    """
    if keep not in get_args(Keep):
        raise UnknownNameError("keep", keep, get_args(Keep))
    steps = [Step(run, t) for t in run.steps()]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # an old decision looks at another network, as it is meant to
        made = [_decision(step, seed) for step in steps]
        shape = (len(steps), len(steps))
        accepted, correct = np.full(shape, np.nan), np.full(shape, np.nan)
        rejected = np.full((*shape, len(run.ood)), np.nan)
        for t, step in enumerate(steps):
            right, tasks = step.predictions == step.test.labels, step.test_tasks()
            for i in range(t + 1):

                def accept(logits: FloatArray, t: int = t, i: int = i) -> FloatArray:
                    if keep == "threshold":
                        return np.asarray(made[t].cal.score(logits) >= made[i].thresholds(alpha))
                    known = logits[:, _columns(steps[t], i)] if keep == "decision" else logits
                    return np.asarray(made[i if keep == "decision" else t].decide(known, alpha).accept)

                accepted[t, i] = accept(step.test.logits[tasks == i]).mean()
                correct[t, i] = right[tasks == i].mean()
                rejected[t, i] = [1 - accept(step.ood[name].logits).mean() for name in run.ood]
    groups = list(run.ood.values())
    return Coverage(Trajectory(accepted), Trajectory(rejected, groups), Trajectory(correct))


def _decision(step: Step, seed: int) -> Conformal:
    samples = step.calibration()
    first, second = np.array_split(np.random.default_rng(seed).permutation(len(samples)), 2)
    cal = TOOD(step.partition).fit(samples.logits[first], samples.labels[first])
    return Conformal(cal).fit(samples.logits[second])


def _columns(step: Step, last: int) -> IntArray:
    """The columns of the tasks up to ``last`` among those of a later step."""
    return np.sort(np.concatenate([np.asarray(task) for task in step.partition.tasks[: last + 1]]))

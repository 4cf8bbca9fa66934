"""Which score finds most unknown inputs in a run's own unlabelled traffic."""

from __future__ import annotations

from tood import detectors
from tood.choose import Choice, choose
from tood.outputs.steps import Step

__all__ = ["choose_by_traffic"]

OF_LOGITS = ("tood", "energy", "maxlogit", "tood_mean_shift", "tood_robust_anchor")
OF_FEATURES = ("typicality", "tood_joint", "mds", "rmds", "knn")


def choose_by_traffic(step: Step, calibration: str | None = None) -> Choice | None:
    """The choice by ``outputs/traffic.npz`` of a step, with its test data as held-out known samples; None without."""
    traffic, fit = step.traffic, step.calibration(calibration)
    if traffic is None:
        return None
    features = all(part.features is not None for part in (traffic, fit, step.test))
    names = OF_LOGITS + (OF_FEATURES if features else ())
    return choose({n: detectors.create(n).fit(fit, partition=step.partition) for n in names}, step.test, traffic)

"""The confidence gap at one step: mean energies of the tasks in their own channels."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from tood.metrics import confidence_gap
from tood.runs.steps import Step
from tood.statistics import own_energies

__all__ = ["Gap", "energy_gap", "of_old_tasks"]


@dataclass(frozen=True)
class Gap:
    """Mean energy per task in its own channel at one step, and the spread of test samples within tasks."""

    calibration: tuple[float, ...]
    test: tuple[float, ...]
    spread: float

    def hidden(self) -> bool:
        """Whether calibration samples show less than half of the gap that test samples show."""
        calibration, test = of_old_tasks(self.calibration), of_old_tasks(self.test)
        return test >= 0.5 * self.spread and calibration < 0.5 * test


def of_old_tasks(energies: Iterable[float]) -> float:
    """How far the old tasks lie below the latest one, on average."""
    *old, latest = energies
    return latest - float(np.mean(old)) if old else 0.0


def energy_gap(step: Step, calibration: str | None = None) -> Gap:
    """The confidence gap at one step, on the calibration set and on the test data."""
    outputs = step.calibration(calibration)
    tasks = step.test_tasks()
    own = own_energies(step.test.logits, tasks, step.partition)
    spread = np.sqrt(np.mean([own[tasks == task].var() for task in range(len(step.partition))]))
    return Gap(
        tuple(confidence_gap(outputs.logits, outputs.labels, step.partition).tolist()),
        tuple(confidence_gap(step.test.logits, step.test.labels, step.partition).tolist()),
        float(spread),
    )

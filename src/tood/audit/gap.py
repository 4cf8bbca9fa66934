"""The confidence gap at one step: mean energies of the tasks in their own channels."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from tood.arrays import Float64Array
from tood.calibration.statistics import own_energies
from tood.outputs.outputs import Outputs
from tood.outputs.steps import Step

__all__ = ["Gap", "energies_by_task", "energy_gap", "of_old_tasks", "spread_within"]


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


def energies_by_task(outputs: Outputs, step: Step) -> list[Float64Array]:
    """The energies of each task's samples in the channel of their task."""
    tasks = step.partition.column_tasks[np.asarray(outputs.labels)]
    own = own_energies(outputs.logits, tasks, step.partition)
    return [own[tasks == task] for task in range(len(step.partition))]


def spread_within(by_task: Iterable[Float64Array]) -> float:
    """The standard deviation within tasks, each task weighted equally."""
    return float(np.sqrt(np.mean([energies.var() for energies in by_task])))


def energy_gap(step: Step, calibration: str | None = None) -> Gap:
    """The confidence gap at one step, on the calibration set and on the test data."""
    sets = [energies_by_task(outputs, step) for outputs in (step.calibration(calibration), step.test)]
    known, test = (tuple(float(energies.mean()) for energies in by_task) for by_task in sets)
    return Gap(known, test, spread_within(sets[1]))

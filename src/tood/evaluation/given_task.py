"""Task-incremental evaluation: the task of every sample is known, so only that task's columns count."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tood.evaluation.measure import measure_step
from tood.evaluation.metrics_file import Row
from tood.evaluation.score import Scorer
from tood.outputs.directory import Arrays
from tood.outputs.steps import Step
from tood.partition import Partition

__all__ = ["GivenTask", "measure_given_task"]


class GivenTask(Step):
    """One task of a step: its columns, its samples of labelled sets, and all OOD samples."""

    def __init__(self, step: Step, task: int) -> None:
        super().__init__(step.run, step.index, step.logits, step.features)
        self.step, self.task = step, task
        self.columns = np.sort(step.columns[list(step.partition.tasks[task])])
        self.partition = Partition.from_sizes([len(self.columns)])

    def using(self, *kinds: Any, **named: Any) -> Step:
        """This task with one kind of logits and features."""
        return GivenTask(self.step.using(*kinds, **named), self.task)

    def _read(self, name: str) -> tuple[Arrays, str]:
        arrays, digest = self.step._read(name)
        if "labels" in arrays:
            own = np.isin(arrays["labels"], self.columns)
            arrays = {key: array[own] for key, array in arrays.items() if key != "predictions"}
        return arrays, digest


def measure_given_task(step: Step, scorers: Sequence[Scorer]) -> tuple[list[Row], tuple[str, ...]]:
    """The metrics of one step if tasks are given: each detector is fitted and scored per task."""
    rows: list[Row] = []
    notes: list[str] = []
    right = np.zeros(2)
    for task in range(len(step.partition)):
        own = GivenTask(step, task)
        measured, said = measure_step(own, scorers)
        rows += [row._replace(task=task) for row in measured if row.task == 0]
        right += (own.predictions == own.test.labels).sum(), len(own.predictions)
        notes += said
    pooled = Row(step.index, None, None, None, None, "accuracy", right[0] / right[1], step.run.calibration, "")
    return [pooled, *rows], tuple(note for note in dict.fromkeys(notes) if "not seen yet" not in note)

"""Bounds for comparison: fine-tuning without any measure against forgetting, and joint training on all data."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np

from tood.arrays import IntArray
from tood.learners.base import Learner, register


@register
class FineTune(Learner):
    """Fine-tuning: cross-entropy on the new task alone, over all columns seen."""

    name = "finetune"
    title = "Fine-tuning"


@register
class Joint(Learner):
    """Joint training: cross-entropy on the data of all tasks up to this one."""

    name = "joint"
    title = "Joint"

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.initial = copy.deepcopy(self.network.backbone.state_dict())

    def begin_task(self, task: int) -> None:
        """Start again from the initial weights."""
        self.network.backbone.load_state_dict(self.initial)
        self.network.head.resize(0)
        self.network.grow(sum(self.stream.sizes[: task + 1]))

    def training_rows(self, task: int) -> IntArray:
        """All data seen."""
        return np.concatenate([self.stream.train_rows(i) for i in range(task + 1)])

    def memory_rows(self) -> IntArray:
        """The data of every earlier task."""
        earlier = [self.stream.train_rows(i) for i in range(len(self.stream)) if sum(self.stream.sizes[:i]) < self.old]
        return np.concatenate([np.empty(0, np.int64), *earlier])

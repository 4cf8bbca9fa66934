"""Training progress: loss, accuracy, speed and time left, reported at most twice per second."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import NamedTuple

from torch import Tensor

from tood.errors import ToodError

__all__ = ["Meter", "Progress", "Report"]

INTERVAL = 0.5  # seconds between two reports


class Progress(NamedTuple):
    """State of training: means of ``loss`` and ``accuracy`` since the epoch began, ``seconds_left`` of this task."""

    task: int
    epoch: int
    epochs: int
    step: int
    steps: int
    loss: float
    accuracy: float
    lr: float
    samples_per_second: float
    seconds_left: float


Report = Callable[[Progress], object]


class Meter:
    """Loss and accuracy of one epoch, summed on the device until they are reported."""

    def __init__(self, task: int, epoch: int, epochs: int, steps: int, report: Report | None) -> None:
        self.task, self.epoch, self.epochs, self.steps = task, epoch, epochs, steps
        self.report = report
        self.step = self.samples = 0
        self.loss: Tensor | float = 0.0
        self.hits: Tensor | float = 0.0
        self.start = self.reported = time.monotonic()

    def add(self, loss: Tensor, logits: Tensor, columns: Tensor, lr: float) -> None:
        """Count one step."""
        self.step += 1
        self.samples += len(columns)
        self.loss = self.loss + loss.detach()
        last = self.step == self.steps
        if self.report is not None:
            self.hits = self.hits + (logits.detach().argmax(1) == columns).sum()
            if last or time.monotonic() - self.reported > INTERVAL:
                self.report(self.summary(lr))
        if last and not math.isfinite(float(self.loss)):
            raise ToodError(f"task {self.task}, epoch {self.epoch}: the loss is not finite; lower lr or clip gradients")

    def summary(self, lr: float) -> Progress:
        """The means so far."""
        self.reported = time.monotonic()
        passed = max(self.reported - self.start, 1e-9)
        left = ((self.epochs - self.epoch) * self.steps - self.step) * passed / self.step
        loss, accuracy = float(self.loss) / self.step, float(self.hits) / self.samples
        place = self.task, self.epoch, self.epochs, self.step, self.steps
        return Progress(*place, loss, accuracy, lr, self.samples / passed, left)

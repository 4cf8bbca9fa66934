"""Training progress: loss, accuracy, speed and time left, reported at most twice per second."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import NamedTuple

import torch
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
        self.place = (task, epoch, epochs)
        self.steps = steps
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
        if self.report is not None:
            with torch.no_grad():
                self.hits = self.hits + (logits.argmax(1) == columns).sum()
            if self.step == self.steps or time.monotonic() - self.reported > INTERVAL:
                self.report(self.summary(lr))
        if self.step == self.steps and not math.isfinite(float(self.loss)):
            task, epoch, _ = self.place
            raise ToodError(f"task {task}, epoch {epoch}: the loss is not finite; lower lr or clip gradients")

    def summary(self, lr: float) -> Progress:
        """The means so far."""
        self.reported = time.monotonic()
        task, epoch, epochs = self.place
        passed = max(self.reported - self.start, 1e-9)
        left = (epochs - epoch) * self.steps - self.step
        loss, accuracy = float(self.loss) / self.step, float(self.hits) / self.samples
        speed = self.samples / passed
        return Progress(
            task, epoch, epochs, self.step, self.steps, loss, accuracy, lr, speed, left * passed / self.step
        )

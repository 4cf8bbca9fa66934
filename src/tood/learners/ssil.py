"""Separated softmax for incremental learning (SS-IL)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from tood.arrays import IntArray
from tood.learners.base import Batch, register
from tood.learners.lwf import distillation
from tood.learners.replay import ExemplarLearner
from tood.learners.settings import Above0, Count, ExemplarSettings


@dataclass(frozen=True)
class SSILSettings(ExemplarSettings):
    """Settings of SS-IL.

    Parameters
    ----------
    temperature:
        Temperature of the distillation.
    replay_size:
        Number of exemplars per batch of new data.
    """

    selection: Literal["herding", "random"] = "random"
    temperature: Above0 = 2.0
    replay_size: Count = 32


@register
class SSIL(ExemplarLearner):
    """Separated Softmax: new and old classes never compete in one softmax, and each old task is distilled by itself.

    With new samples N, exemplars M, old columns O, new columns P, and the columns ``T_s`` of task s::

        L = (Σ_N CE(z_P) + Σ_M CE(z_O)) / (|N| + |M|) + τ² Σ_{s < t} KD(z_{T_s}, teacher_{T_s}; τ)

    Every batch has the same share of exemplars (ratio-preserving batches).
    """

    name = "ssil"
    title = "SS-IL"
    citation = 'Ahn et al., "SS-IL: Separated Softmax for Incremental Learning", ICCV 2021.'
    settings: SSILSettings
    distils = True

    def training_rows(self, task: int) -> IntArray:
        """New data."""
        return self.stream.train_rows(task)

    def batches(self, rows: IntArray) -> Iterator[Batch]:
        """Each batch of new data joined by exemplars."""
        count = max(1, self.settings.replay_size // self.fabric.world_size)
        for new in self.shuffled(rows):
            yield new.join(self.draw(self.memory.rows, count)) if len(self.memory) else new

    def loss(self, batch: Batch, logits: Tensor) -> Tensor:
        """Separated softmax and, from the second task on, task-wise distillation."""
        new, old, temperature = len(batch.rows), self.old, self.settings.temperature
        loss = cross_entropy(logits[:new, old:], batch.columns[:new] - old, reduction="sum")
        if not old:
            return loss / new
        loss = loss + cross_entropy(logits[new:, :old], batch.columns[new:], reduction="sum")
        sizes, teacher = list(self.stream.sizes[: self.learned]), self.teach(batch.inputs)
        blocks = zip(torch.split(logits[:, :old], sizes, 1), torch.split(teacher, sizes, 1), strict=True)
        kept = sum(distillation(*block, temperature) for block in blocks)
        return loss / len(logits) + temperature**2 * kept

"""Dark experience replay, and DER++."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from tood.arrays import IntArray
from tood.learners.base import Batch, register
from tood.learners.memory import Exemplars
from tood.learners.replay import ReservoirLearner
from tood.learners.settings import Above0, AtLeast0, Count, From0Below1, ReservoirSettings


@dataclass(frozen=True)
class DERSettings(ReservoirSettings):
    """Settings of DER.

    Parameters
    ----------
    alpha:
        Weight of the squared distance to the stored logits.
    beta:
        Weight of the cross-entropy of a second replayed batch; above 0 it is DER++.
    targets:
        ``"online"``: logits are stored during training, by reservoir sampling, as in the original method.
        ``"after_task"``: as the authors of the TOOD paper ran it. After each task a class-balanced memory is filled,
        its logits are computed in evaluation mode without augmentation, and one replayed batch joins each new one; the
        squared distance covers the columns of old tasks.
    """

    momentum: From0Below1 = 0.0
    weight_decay: AtLeast0 = 0.0
    lr: Above0 = 0.03
    batch_size: Count = 32
    schedule: Literal["multistep", "one_cycle", "cosine", "none"] = "none"
    epochs: Count = 50
    alpha: AtLeast0 = 0.3
    beta: AtLeast0 = 0.0
    targets: Literal["online", "after_task"] = "online"


@dataclass(frozen=True)
class DERppSettings(DERSettings):
    """Settings of DER++: those of DER with the weights of its paper for a memory of 500."""

    alpha: AtLeast0 = 0.2
    beta: AtLeast0 = 0.5


@register
class DER(ReservoirLearner):
    """Dark Experience Replay: replays samples with the logits that the network gave them when they were stored.

    Columns added later have the target 0: nearly what the full-width head of the paper does, whose unused logits are
    near 0.
    """

    name = "der"
    title = "DER"
    citation = 'Buzzega et al., "Dark Experience for General Continual Learning", NeurIPS 2020 (Eqs. 5 and 6).'
    settings: DERSettings
    remembers = ("memory", "stored")

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        slots = self.settings.memory
        self.after_task = self.settings.targets == "after_task"
        if self.after_task:
            self.memory = Exemplars(slots, seed=self.seed)
        self.draws = 2 if self.settings.beta and not self.after_task else 1
        self.stored = torch.zeros(slots, len(self.stream.order), device=self.fabric.device)  # logits, by slot

    def batches(self, rows: IntArray) -> Iterator[Batch]:
        """New data; with targets computed after the task, joined by one replayed batch."""
        for new, *drawn in self.replayed(rows):
            self.drawn = drawn
            yield new.join(*drawn) if self.after_task else new

    def loss(self, batch: Batch, logits: Tensor) -> Tensor:
        """``CE(z, y) + α ‖h(x') - z'‖² [+ β CE(h(x''), y'')]``, with x' and x'' from the memory (one draw or two)."""
        s, new = self.settings, len(batch.rows)
        loss = cross_entropy(logits[:new], batch.columns[:new])
        if not self.drawn:
            return loss
        first, *second = self.drawn
        targets = self.stored[self.tensor(self.slots[0])]
        if self.after_task:
            loss = loss + s.alpha * (logits[new:, : self.old] - targets[:, : self.old]).square().mean()
            return loss + s.beta * cross_entropy(logits[new:], first.columns)
        loss = loss + s.alpha * (self.model(first.inputs) - targets[:, : logits.shape[1]]).square().mean()
        for again in second:
            loss = loss + s.beta * cross_entropy(self.model(again.inputs), again.columns)
        return loss

    def after_step(self, batch: Batch, logits: Tensor) -> None:
        """Store the logits of the forward pass, before the step, of the new samples that the memory kept."""
        if not self.after_task:
            answers = torch.as_tensor(self.fabric.all_gather(logits.detach().float())).reshape(-1, logits.shape[1])
            taken = np.flatnonzero(self.kept >= 0)
            self._store(self.kept[taken], answers[self.tensor(taken)])

    def end_task(self, task: int) -> None:
        """With targets computed after the task: fill the memory; samples that stay keep their targets."""
        if not self.after_task:
            return
        before, stored = self.memory.rows, self.stored.clone()
        rows = self.stream.train_rows(task)
        self.memory.add(rows, self.columns[rows])
        _, kept, old = np.intersect1d(self.memory.rows, before, return_indices=True)
        new = np.setdiff1d(np.arange(len(self.memory)), kept)
        self.stored[kept] = stored[old]
        self._store(new, self.outputs(self.memory.rows[new])[1])

    def _store(self, slots: IntArray, logits: Tensor) -> None:
        """Write the targets of some slots; columns without one are 0."""
        places = self.tensor(slots)
        self.stored[places] = 0
        self.stored[places, : logits.shape[1]] = logits


@register
class DERpp(DER):
    """DER++: DER with cross-entropy on a second replayed batch."""

    name = "derpp"
    title = "DER++"
    settings: DERppSettings

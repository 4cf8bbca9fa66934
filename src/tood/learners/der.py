"""Dark experience replay, and DER++."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from tood.arrays import IntArray
from tood.learners.base import Batch
from tood.learners.memory import Exemplars, Reservoir
from tood.learners.registry import register
from tood.learners.replay import ReservoirLearner
from tood.learners.settings import AT_LEAST_0, Ranges, ReservoirSettings


@dataclass(frozen=True)
class DERSettings(ReservoirSettings):
    """Settings of DER.

    Parameters
    ----------
    alpha:
        Weight of the squared distance to the stored logits.
    beta:
        Weight of the cross-entropy of a second replayed batch; above 0 it is DER++.
    stored:
        ``"zero_pad"``: compare all columns, with target 0 for columns added after a sample was stored. This is nearly
        what the full-width head of the paper does, whose unused logits are near 0. ``"width"``: compare only the
        stored columns; plain DER then does not lower the logits of new classes on old samples, and forgets.
    targets:
        ``"online"``: logits are stored during training, by reservoir sampling, as in the original method.
        ``"after_task"``: as the authors of the TOOD paper ran it. After each task a class-balanced memory is filled,
        its logits are computed in evaluation mode without augmentation, and one replayed batch joins each new one; the
        squared distance covers the columns of old tasks, with target 0 for columns that were not stored.
    """

    RANGES: ClassVar[Ranges] = {"alpha": AT_LEAST_0, "beta": AT_LEAST_0}
    momentum: float = 0.0
    weight_decay: float = 0.0
    lr: float = 0.03
    batch_size: int = 32
    schedule: Literal["multistep", "one_cycle", "cosine", "none"] = "none"
    epochs: int = 50
    alpha: float = 0.3
    beta: float = 0.0
    stored: Literal["width", "zero_pad"] = "zero_pad"
    targets: Literal["online", "after_task"] = "online"


@dataclass(frozen=True)
class DERppSettings(DERSettings):
    """Settings of DER++: those of DER with the weights of its paper for a memory of 500."""

    alpha: float = 0.2
    beta: float = 0.5


@register
class DER(ReservoirLearner):
    """Dark Experience Replay: replays samples with the logits that the network gave them when they were stored."""

    name = "der"
    title = "DER"
    citation = 'Buzzega et al., "Dark Experience for General Continual Learning", NeurIPS 2020 (Eqs. 5 and 6).'
    settings: DERSettings
    remembers = ("memory", "stored", "widths")
    memory: Reservoir | Exemplars  # type: ignore[assignment]  # as `targets` says

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        slots, device = self.settings.memory, self.fabric.device
        if self.settings.targets == "after_task":
            self.memory = Exemplars(total=slots, selection="random", seed=self.seed)
        self.stored = torch.zeros(slots, len(self.stream.order), device=device)
        self.widths = torch.zeros(slots, dtype=torch.int64, device=device)  # number of columns stored

    def batches(self, rows: IntArray) -> Iterator[Batch]:
        """New data; with targets computed after the task, joined by one replayed batch."""
        for new in self.shuffled(rows):
            if self.settings.targets == "after_task" and len(self.memory):
                self._slots = self._draw_slots()
                new = new.join(self.fetch(self.memory.rows[self._slots]))
            yield new

    def loss(self, batch: Batch, logits: Tensor) -> Tensor:
        """``CE(z, y) + α ‖h(x') - z'‖² [+ β CE(h(x''), y'')]``, with x' and x'' from the memory (one draw or two)."""
        s, new = self.settings, len(batch.rows)
        loss = cross_entropy(logits[:new], batch.columns[:new])
        if not len(self.memory):
            return loss
        if s.targets == "after_task":
            loss = loss + s.alpha * self.distance(logits[new:, : self.old], torch.from_numpy(self._slots))
            return loss + s.beta * cross_entropy(logits[new:], batch.columns[new:])
        slots = self._draw_slots()
        answer = self.model(self.fetch(self.memory.rows[slots]).inputs)
        loss = loss + s.alpha * self.distance(answer, torch.from_numpy(slots))
        if s.beta:
            again = self.draw(self.memory.rows, self.replay_count)
            loss = loss + s.beta * cross_entropy(self.model(again.inputs), again.columns)
        return loss

    def _draw_slots(self) -> IntArray:
        """Positions in the memory of a random batch."""
        return self.random.choice(len(self.memory), min(self.replay_count, len(self.memory)), replace=False)

    def distance(self, logits: Tensor, slots: Tensor) -> Tensor:
        """The mean squared difference between logits ``[n, C]`` and the targets stored in these slots."""
        squares = (logits - self.stored[slots, : logits.shape[1]]).square()
        if self.settings.stored == "zero_pad":
            return squares.mean()
        known = torch.arange(logits.shape[1], device=logits.device) < self.widths[slots, None]
        return (squares * known).sum() / known.sum()

    def after_step(self, batch: Batch, logits: Tensor) -> None:
        """Reservoir sampling; the logits are those of the forward pass, before the step."""
        if not isinstance(self.memory, Reservoir):
            return
        columns = logits.shape[1]
        slots = torch.from_numpy(self.memory.offer(self.shown(batch)))
        answers = torch.as_tensor(self.fabric.all_gather(logits.detach().float())).reshape(-1, columns)
        taken = slots >= 0
        self.stored[slots[taken]] = 0
        self.stored[slots[taken], :columns] = answers[taken]
        self.widths[slots[taken]] = columns

    def end_task(self, task: int) -> None:
        """With targets computed after the task: fill the memory; samples that stay keep their targets."""
        if not isinstance(self.memory, Exemplars):
            return
        slot_before = {int(row): slot for slot, row in enumerate(self.memory.rows)}
        stored, widths = self.stored.clone(), self.widths.clone()
        rows = self.stream.train_rows(task)
        self.memory.add(rows, self.columns[rows])
        new = np.array([int(row) not in slot_before for row in self.memory.rows])
        self.stored.zero_()
        kept = [slot_before[int(row)] for row in self.memory.rows[~new]]
        self.stored[np.flatnonzero(~new)], self.widths[np.flatnonzero(~new)] = stored[kept], widths[kept]
        logits = self.outputs(self.memory.rows[new])[1]
        self.stored[np.flatnonzero(new), : logits.shape[1]] = logits
        self.widths[np.flatnonzero(new)] = logits.shape[1]


@register
class DERpp(DER):
    """DER++: DER with cross-entropy on a second replayed batch."""

    name = "derpp"
    title = "DER++"
    settings: DERppSettings

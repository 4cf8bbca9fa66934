"""Base classes of learners with replay: a memory of exemplars, or a reservoir."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from tood.arrays import IntArray
from tood.errors import ToodError
from tood.learners.base import Batch, Learner
from tood.learners.distillation import distillation
from tood.learners.memory import Exemplars, Reservoir
from tood.learners.settings import ExemplarSettings, ReservoirSettings


class ExemplarLearner(Learner):
    """Trains on new data and exemplars together, shuffled, and keeps exemplars of each class afterwards."""

    settings: ExemplarSettings
    remembers: ClassVar[tuple[str, ...]] = ("memory",)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.memory = self.make_memory(self.settings.memory, self.settings.selection)

    def make_memory(self, size: int, selection: str) -> Exemplars:
        """An empty memory of this size, in the unit of the settings."""
        s, classes = self.settings, len(self.stream.order)
        if s.memory_unit == "class":
            return Exemplars(per_class=size, selection=selection, seed=self.seed)
        if size < classes:
            raise ToodError(f"memory: expected room for one exemplar of each of {classes} classes, found {s.memory}")
        return Exemplars(total=size, selection=selection, seed=self.seed)

    def training_rows(self, task: int) -> IntArray:
        """New data and exemplars."""
        return np.concatenate([self.stream.train_rows(task), self.memory.rows])

    def end_task(self, task: int) -> None:
        """Keep exemplars of the new classes and fewer of the old ones."""
        self.keep(self.memory, self.stream.train_rows(task))

    def keep(self, memory: Exemplars, rows: IntArray) -> None:
        """Add rows of new classes to a memory."""
        features = self.outputs(rows)[0].cpu() if memory.selection == "herding" else None
        memory.add(rows, self.columns[rows], features)

    def memory_rows(self) -> IntArray:
        """The exemplars."""
        return self.memory.rows


def weighted_distillation(learner: Learner, batch: Batch, logits: Tensor, temperature: float) -> Tensor:
    """``λ KD + (1 - λ) CE`` with ``λ = n_old / n``: the loss of BiC and WA."""
    loss = cross_entropy(logits, batch.columns)
    if not learner.old:
        return loss
    share = learner.old / logits.shape[1]
    kept = distillation(logits[:, : learner.old], learner.teach(batch.inputs), temperature)
    return share * kept + (1 - share) * loss


class ReservoirLearner(Learner):
    """Replays from a uniform sample of all training data seen; every epoch offers its rows again."""

    settings: ReservoirSettings
    remembers: ClassVar[tuple[str, ...]] = ("memory",)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        classes = len(self.stream.order)
        if self.settings.memory < classes:
            raise ToodError(
                f"memory: expected room for one sample of each of {classes} classes, found {self.settings.memory}"
            )
        self.memory = Reservoir(self.settings.memory, self.seed)

    @property
    def replay_count(self) -> int:
        """The number of replayed samples per batch of new data, in this process."""
        size = self.settings.replay_size or self.settings.batch_size
        return max(1, size // self.fabric.world_size)

    def replay(self) -> Batch | None:
        """A batch from the memory, or None while it is empty."""
        return self.draw(self.memory.rows, self.replay_count) if len(self.memory) else None

    def shown(self, batch: Batch) -> IntArray:
        """The rows of this batch in all processes, so that their memories stay the same."""
        rows = self.fabric.all_gather(torch.from_numpy(batch.rows).to(self.fabric.device))
        return torch.as_tensor(rows).flatten().cpu().numpy()

    def memory_rows(self) -> IntArray:
        """The rows in the reservoir, each once."""
        return np.unique(self.memory.rows)

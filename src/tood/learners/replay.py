"""Base classes of learners with replay: a memory of exemplars, or a reservoir. Both replay by themselves."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any, ClassVar

import numpy as np

from tood.arrays import IntArray
from tood.errors import ToodError
from tood.learners.base import Batch, Learner
from tood.learners.memory import Exemplars, Reservoir
from tood.learners.settings import ExemplarSettings, ReservoirSettings
from tood.streams import batches as read_batches


class ExemplarLearner(Learner):
    """Trains on new data and exemplars together, shuffled, and keeps exemplars of each class afterwards."""

    settings: ExemplarSettings
    remembers: ClassVar[tuple[str, ...]] = ("memory",)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.per_class = self.settings.memory_unit == "class"
        self.least = 1 if self.per_class else len(self.stream.order)  # one sample per class
        self.memory = self.make_memory(self.settings.memory, self.settings.selection)

    def make_memory(self, size: int, selection: str) -> Exemplars:
        """An empty memory of this size, in the unit of the settings."""
        check_room(size, self.least)
        return Exemplars(size, self.per_class, selection, self.seed)

    def training_rows(self, task: int) -> IntArray:
        """New data and exemplars."""
        return np.concatenate([self.stream.train_rows(task), self.memory.rows])

    def end_task(self, task: int) -> None:
        """Keep exemplars of the new classes and fewer of the old ones."""
        self.keep(self.memory, self.stream.train_rows(task))

    def keep(self, memory: Exemplars, rows: IntArray) -> None:
        """Add rows of new classes to a memory; herding chooses among all of them."""
        features = self.outputs(rows)[0].cpu().numpy() if memory.selection == "herding" else None
        memory.add(rows, self.columns[rows], features)

    def memory_rows(self) -> IntArray:
        """The exemplars."""
        return self.memory.rows


def check_room(memory: int, least: int) -> None:
    """Raise unless a memory has room for one sample per class, beside those that BiC holds out."""
    if memory < least:
        raise ToodError(f"memory: expected room for one sample of each of {least} classes, found {memory}")


class ReservoirLearner(Learner):
    """Replays from a uniform sample of all training data seen; every epoch offers its rows again."""

    settings: ReservoirSettings
    remembers: ClassVar[tuple[str, ...]] = ("memory",)
    memory: Any  # a Reservoir; Exemplars if they are filled after the task
    draws: int = 1  # batches from the memory per batch of new data
    slots: list[IntArray]  # of the current step: positions in the memory of each replayed batch
    kept: IntArray  # of the current step: where new rows were stored, those of all processes; -1 if they were not

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        check_room(self.settings.memory, len(self.stream.order))
        self.memory = Reservoir(self.settings.memory, self.seed)

    def batches(self, rows: IntArray) -> Iterator[Batch]:
        """Each batch of new data joined by a replayed one, ``B_n ∪ B_M``."""
        for new, *old in self.replayed(rows):
            yield new.join(*old)

    def replayed(self, rows: IntArray) -> Iterator[list[Batch]]:
        """Each batch of new data and, unless the memory is empty, :attr:`draws` batches from the memory.

        The memory is offered each batch after the draws for it. Neither depends on the weights, so images are read
        ahead of training.
        """
        size = self.settings.replay_size or self.settings.batch_size
        count = max(1, size // self.fabric.world_size)
        waiting: deque[tuple[list[IntArray], list[IntArray], IntArray]] = deque()

        def plan() -> Iterator[IntArray]:
            chunks = self.chunks(rows)
            for mine, *all_processes in zip(chunks[self.fabric.global_rank], *chunks, strict=True):
                held = len(self.memory)
                draws = range(self.draws if held else 0)
                slots = [self.random.choice(held, min(count, held), replace=False) for _ in draws]
                parts = [mine, *(self.memory.rows[chosen] for chosen in slots)]
                online = isinstance(self.memory, Reservoir)
                kept = self.memory.offer(np.concatenate(all_processes)) if online else np.empty(0, np.int64)
                waiting.append((parts, slots, kept))
                yield np.concatenate(parts)

        for samples in read_batches(self.stream.train, plan()):
            parts, self.slots, self.kept = waiting.popleft()
            ends = np.cumsum([len(part) for part in parts])
            yield [self.batch(*pair) for pair in zip(parts, np.split(samples, ends[:-1]), strict=True)]

    def memory_rows(self) -> IntArray:
        """The rows in the memory, each once."""
        return np.unique(self.memory.rows)

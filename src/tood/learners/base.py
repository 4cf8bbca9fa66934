"""THE training loop. A learner overrides ``begin_task``, ``loss`` and ``end_task``; few need more.

Every random choice comes from a generator created for (seed, task, epoch), so a run that is killed and resumed at
the last checkpoint makes the same choices again.
"""

from __future__ import annotations

import copy
import hashlib
import re
from collections.abc import Iterator
from dataclasses import asdict
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from lightning_fabric import Fabric
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from tood.arrays import IntArray, floats
from tood.errors import ToodError
from tood.learners.ber import BER
from tood.learners.checkpoint import checkpoint_path, describe_stream, resume, save
from tood.learners.progress import Meter, Report
from tood.learners.settings import Settings, learning_rate
from tood.models import BUILT_IN, GrowingHead, Network
from tood.registry import Registry, source_digest
from tood.streams import Stream
from tood.streams import batches as read_batches
from tood.streams.augment import augment, prepare

__all__ = ["LEARNERS", "Batch", "Learner", "register"]

EVALUATION_BATCH = 256


class Batch(NamedTuple):
    """Network inputs, the logit column of each one's class, and their rows in ``stream.train``.

    If a learner joins replayed samples to a batch of new ones, they come last and ``rows`` has only the new ones.
    """

    inputs: Tensor
    columns: Tensor
    rows: IntArray

    def join(self, *replayed: Batch) -> Batch:
        """This batch with replayed samples after its own."""
        inputs, columns, _ = zip(self, *replayed, strict=True)
        return Batch(torch.cat(inputs), torch.cat(columns), self.rows) if replayed else self


class Learner:
    """A continual-learning method: learns the tasks of a stream one after the other, in order.

    Made by :func:`tood.learners.create`. After ``learn(t)``, :attr:`network` is ``θ_t``.

    Parameters
    ----------
    stream:
        The tasks to learn.
    network:
        The network to train; its head is emptied and grows with the tasks.
    settings:
        Settings of the class that the subclass annotates.
    seed:
        Seed of every random choice.
    fabric:
        Device, precision and processes.
    """

    settings: Settings
    #: Name on the command line, display name, and publication (authors, title, venue, year).
    name: ClassVar[str]
    title: ClassVar[str] = ""
    citation: ClassVar[str] = ""
    #: True to distil from the network as it was before the task.
    distils: ClassVar[bool] = False
    #: True if the head is solved for, without gradient steps (see :mod:`tood.learners.closed_form`).
    closed_form: ClassVar[bool] = False
    #: True if the method corrects its head after training (BiC): runs then keep and score raw logits, too.
    corrects_head: ClassVar[bool] = False
    #: Attributes that a checkpoint keeps: arrays, tensors, dictionaries of them, or objects with ``state_dict``.
    remembers: ClassVar[tuple[str, ...]] = ()

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "name" in vars(cls) and "title" not in vars(cls):
            cls.title = cls.name

    def __init__(self, stream: Stream, network: Network, settings: Settings, seed: int, fabric: Fabric) -> None:
        self.stream = stream
        self.settings = settings
        self.seed = seed
        self.fabric = fabric
        self.network: Network = network.to(fabric.device).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.network.head.resize(0)
        self._own_network = own_design(self.network)
        self.learned = 0  # tasks
        self.expanded = 0  # tasks whose structure the network has
        self.old = 0  # logit columns before the current task
        self.set_teacher(None)
        self.model: nn.Module = self.network  # the same, as the loop calls it
        self.facts: dict[str, Any] = {}  # numbers of the last task, such as WA's alignment factor; in learner.json
        self.ber: BER | None = None
        self.scoring_head: GrowingHead | None = None  # BER's, of the last task learned
        self.columns = np.full(len(stream.train), -1)
        for task in range(len(stream)):
            rows = np.concatenate([stream.train_rows(task), stream.reserved_rows(task)])
            self.columns[rows] = stream.columns(stream.train.labels[rows])
        self.draw_from(task=0, epoch=0)

    # What a learner overrides

    def expand(self, task: int) -> None:
        """Change the structure of the network for a task, if the method does; the loop adds the columns of the head.

        Called once per task in order: before the task is learned, or before its checkpoint is loaded.
        """

    def begin_task(self, task: int) -> None:
        """Before the first epoch of a task; the head already has the new columns."""

    def training_rows(self, task: int) -> IntArray:
        """Rows of ``stream.train`` that an epoch of this task goes through."""
        return self.stream.train_rows(task)

    def loss(self, batch: Batch, logits: Tensor) -> Tensor:
        """The loss of one batch, by default the cross-entropy; ``logits`` are the network's, in training mode."""
        return cross_entropy(logits, batch.columns)

    def optimizer(self) -> torch.optim.Optimizer:
        """The optimiser of one task: SGD, unless a subclass returns another. Its state is part of checkpoints."""
        s = self.settings
        return torch.optim.SGD(self.network.parameters(), s.lr, s.momentum, weight_decay=s.weight_decay)

    def after_backward(self, batch: Batch) -> None:
        """Change the gradients before they are clipped and used."""

    def after_step(self, batch: Batch, logits: Tensor) -> None:
        """After the weights changed."""

    def end_task(self, task: int) -> None:
        """After the last epoch of a task."""

    def memory_rows(self) -> IntArray:
        """Rows of ``stream.train`` that are replayed now."""
        return np.empty(0, np.int64)

    def predict(self, features: Any, logits: Any) -> IntArray:
        """Predicted columns ``[n]`` from features ``[n, D]`` and logits ``[n, C]``."""
        return np.asarray(floats(logits, "logits", 2).argmax(axis=1))

    # The loop

    def learn(
        self,
        task: int,
        checkpoint_dir: str | Path | None = None,
        progress: Report | None = None,
        base_dir: str | Path | None = None,
    ) -> None:
        """Learn one task, or resume it from its checkpoint.

        Parameters
        ----------
        task:
            The next task, or one with a finished checkpoint, which is loaded.
        checkpoint_dir:
            The folder of ``task-00.safetensors`` and so on, written after every epoch; None to save nothing.
        progress:
            Called with a :class:`~tood.learners.progress.Progress` at most every half second and after each epoch.
        base_dir:
            BER only: checkpoints of the plain learner, used when this run has none.
        """
        path = None if checkpoint_dir is None else checkpoint_path(checkpoint_dir, task)
        place, state = resume(self, path)
        if place.get("finished"):
            self.network.eval()
            return
        if not place and self.ber is not None and base_dir is not None:
            place, state = resume(self, checkpoint_path(base_dir, task), ignored="ber")
        if not place.get("finished"):
            if task != self.learned or task >= len(self.stream):
                raise ToodError(f"task: expected {self.learned} of {len(self.stream)}, the next one, found {task}")
            gpus = [self.fabric.device] if self.fabric.device.type == "cuda" else []
            with torch.random.fork_rng(devices=gpus):  # torch's own random state is left alone
                self._train(task, path, progress, place.get("epoch"), state)
        if self.ber is not None:
            self.scoring_head = self.ber.fit(self, task)
        self.network.eval().zero_grad()
        self.learned = task + 1
        if path:
            save(self, path, {"task": task, "finished": True}, None)

    def _train(self, task: int, path: Path | None, progress: Report | None, epoch: int | None, state: Any) -> None:
        """The epochs of a task, starting with ``epoch``; None to start the task."""
        if epoch is None:
            self._open(task)
        optimizer = self.optimizer()
        if state:
            groups = optimizer.state_dict()["param_groups"]
            optimizer.load_state_dict({"state": state, "param_groups": groups})
        self.model, wrapped = self.fabric.setup(self.network, optimizer)
        rows = self.training_rows(task)
        for done in range(epoch or 0, self.settings.epochs):
            self._epoch(task, done, rows, wrapped, progress)
            if path and done + 1 < self.settings.epochs:
                save(self, path, {"task": task, "epoch": done + 1}, optimizer)
        self.model = self.network
        self.draw_from(task, epoch=self.settings.epochs)
        self.end_task(task)

    def _open(self, task: int) -> None:
        """Start a task: set the teacher, add the new columns, call :meth:`begin_task`."""
        self.old = sum(self.stream.sizes[:task])
        if self.network.head.columns != self.old:
            raise ToodError(f"task: {task} was interrupted; create the learner again, it resumes from its checkpoints")
        self.facts = {}
        self.draw_from(task, epoch=self.settings.epochs + 1)
        torch.manual_seed(self.generator.initial_seed())  # the new columns; afterwards, dropout
        if self.distils and task:
            self.set_teacher(copy.deepcopy(self.network))
        self.expand_to(task)
        self.network.grow(self.stream.sizes[task])
        self.begin_task(task)

    def expand_to(self, task: int) -> None:
        """Give the network the structure of a task."""
        for new in range(self.expanded, task + 1):
            self.expand(new)
            self.expanded = new + 1

    def _epoch(self, task: int, epoch: int, rows: IntArray, optimizer: Any, progress: Report | None) -> None:
        self.draw_from(task, epoch, self.fabric.global_rank)
        torch.manual_seed(self.generator.initial_seed())
        self.network.train()
        steps = self._steps(rows)
        meter = Meter(task, epoch, self.settings.epochs, steps, progress if self.fabric.is_global_zero else None)
        for step, batch in enumerate(self.batches(rows)):
            lr = learning_rate(self.settings, epoch, step / steps)
            for group in optimizer.param_groups:
                group["lr"] = lr
            optimizer.zero_grad()
            logits = self.model(batch.inputs)
            loss = self.loss(batch, logits)
            self.fabric.backward(loss)
            self.fabric.strategy.precision.unscale_gradients(optimizer.optimizer)  # 16-mixed scales the loss
            self.after_backward(batch)
            if self.settings.clip:
                nn.utils.clip_grad_norm_(self.network.parameters(), self.settings.clip)
            optimizer.step()
            self.after_step(batch, logits)
            meter.add(loss, logits, batch.columns, lr)
        if self.fabric.world_size > 1:  # running means of batch normalisation
            for buffer in filter(torch.is_floating_point, self.network.buffers()):
                buffer.copy_(self.fabric.all_reduce(buffer, reduce_op="mean"))  # type: ignore[arg-type]

    # Data

    def draw_from(self, task: int, epoch: int, rank: int = 0) -> None:
        """Start the generators of one epoch; those of replay and augmentation are each process's own."""
        self._order = np.random.default_rng([self.seed, task, epoch, 0])
        self.random = np.random.default_rng([self.seed, task, epoch, 1, rank])
        self.generator = torch.Generator().manual_seed(int(self.random.integers(2**62)))

    def _steps(self, rows: IntArray) -> int:
        return -(-len(rows) // self.settings.batch_size)

    def batches(self, rows: IntArray) -> Iterator[Batch]:
        """The batches of one epoch."""
        return self.shuffled(rows)

    def shuffled(self, rows: IntArray) -> Iterator[Batch]:
        """The rows in random order, augmented; each process gets its share of every batch."""
        chunks = self.chunks(rows)[self.fabric.global_rank]
        for chunk, samples in zip(chunks, read_batches(self.stream.train, chunks), strict=True):
            yield self.batch(chunk, samples)

    def chunks(self, rows: IntArray) -> list[list[IntArray]]:
        """The rows in random order: by process, the rows of each batch."""
        world = self.fabric.world_size
        order = self._order.permutation(rows)[: len(rows) // world * world]
        return [np.array_split(order[rank::world], self._steps(rows)) for rank in range(world)]

    def draw(self, rows: IntArray, count: int) -> Batch:
        """A random batch of some rows without repetition, augmented, for replay."""
        chosen = self.random.choice(rows, min(count, len(rows)), replace=False)
        return self.batch(chosen, self.stream.train.take(chosen))

    def batch(self, rows: IntArray, samples: Any) -> Batch:
        """Samples of these rows, augmented."""
        inputs = augment(self.prepare(samples), self.stream.augmentation, self.generator, black=self.stream.black)
        return Batch(inputs, self.tensor(self.columns[rows]), rows)

    def prepare(self, samples: Any) -> Tensor:
        """Samples as network input, on the device."""
        return prepare(self.tensor(samples), self.stream.mean, self.stream.std)

    def tensor(self, array: Any) -> Tensor:
        """An array on the device; the copy to a GPU does not block the CPU."""
        tensor = torch.from_numpy(array)
        if self.fabric.device.type == "cuda":
            return tensor.pin_memory().to(self.fabric.device, non_blocking=True)
        return tensor.to(self.fabric.device)

    @torch.no_grad()
    def outputs(self, rows: IntArray, flip: bool = False, network: Network | None = None) -> tuple[Tensor, Tensor]:
        """Features ``[n, D]`` and logits ``[n, C]`` of rows of ``stream.train``, not augmented, in evaluation mode."""
        network = (self.network if network is None else network).fused()
        chunks = np.array_split(rows, -(-len(rows) // EVALUATION_BATCH))
        inputs = (self.prepare(samples) for samples in read_batches(self.stream.train, chunks))
        features = torch.cat([network.features(x.flip(3) if flip else x) for x in inputs])
        return features, network.head(features)

    def set_teacher(self, teacher: Network | None) -> None:
        """Distil from this network; None to stop."""
        self.teacher = teacher
        self._frozen_teacher = None if teacher is None else teacher.fused()

    @torch.no_grad()
    def teach(self, inputs: Tensor) -> Tensor:
        """The teacher's logits ``[n, old]`` of the same augmented inputs."""
        if self._frozen_teacher is None:
            raise ToodError("teacher: expected one, found none: the first task has nothing to distil")
        with self.fabric.autocast():
            return self._frozen_teacher(inputs).float()

    @cached_property
    def _stream_identity(self) -> dict[str, Any]:
        return describe_stream(self.stream)

    def config(self) -> dict[str, Any]:
        """Everything that determines the weights; a checkpoint of another configuration is refused."""
        code = source_digest(type(self))
        return {
            "learner": self.name,
            **({"code": code} if code else {}),  # of a learner of the user's own
            "settings": asdict(self.settings),
            "seed": self.seed,
            "network": {**(self.network.spec or {}), **self._own_network},
            "stream": self._stream_identity,
            "ber": None if self.ber is None else asdict(self.ber.settings),
        }


def own_design(network: Network) -> dict[str, str]:
    """What a network of the user's own is, except for its weights; empty for one that is built in or of timm."""
    name = "" if network.spec is None else network.spec["name"]
    if name in BUILT_IN or name.startswith("timm:"):
        return {}
    shown = re.sub(r" at 0x[0-9a-f]+", "", repr(network.backbone))  # addresses differ between processes
    code = source_digest(type(network.backbone)) if name else ""
    return {"own": hashlib.sha256((shown + code).encode()).hexdigest()[:16]}


LEARNERS: Registry[type[Learner]] = Registry("learner", "tood.learners", Learner)
register = LEARNERS.register

"""The contract of learners, as rules that :func:`tood.testing.check_learner` checks."""

from __future__ import annotations

import contextlib
import dataclasses
import tempfile
from typing import Any

import numpy as np
import torch

from tood import models
from tood.errors import ToodError
from tood.learners.base import Learner
from tood.learners.closed_form import ClosedFormSettings
from tood.learners.processes import start
from tood.learners.progress import Progress
from tood.learners.settings import Settings, make_settings, settings_class
from tood.streams import Stream
from tood.testing.contract import Rules, wrong_declarations

__all__ = ["RULES", "LearnerCase"]

TASKS, CLASSES, EACH = 3, 6, 24
# Small enough for seconds; a memory holds a few samples of each class.
SMALL = {"epochs": 3, "batch_size": 8, "lr": 0.05, "schedule": "none", "memory": 24}


class Stop(Exception):
    """Raised to interrupt training in the middle of a task."""


def blobs(reserve: int = 0) -> Stream:
    """Three tasks of two Gaussian classes in eight dimensions."""
    rng = np.random.default_rng(0)
    centres = 2 * rng.normal(size=(CLASSES, 8))
    labels = rng.permutation(np.repeat(np.arange(CLASSES), EACH))
    samples = (centres[labels] + rng.normal(size=(len(labels), 8))).astype(np.float32)
    return Stream.from_arrays(samples, labels, samples, labels, tasks=TASKS, name="blobs", reserve=reserve)


class LearnerCase:
    """A learner class with settings, and a stream to try it on."""

    def __init__(self, learner: type[Learner], settings: dict[str, Any]) -> None:
        if not (isinstance(learner, type) and issubclass(learner, Learner)):
            raise ToodError(f"learner: expected a subclass of tood.learners.Learner, found {learner!r}")
        self.learner = learner
        self.settings = settings

    def create(self, seed: int = 0, stream: Stream | None = None, **settings: Any) -> Learner:
        """A learner before task 0."""
        stream = stream or blobs()
        kind = settings_class(self.learner)
        known = {field.name for field in dataclasses.fields(kind)}
        small = {name: value for name, value in SMALL.items() if name in known}
        network = models.create("mlp", (8,), seed=seed)
        made = make_settings(kind, {**small, **self.settings, **settings})
        return self.learner(stream, network, made, seed, start("cpu"))

    def learned(self, tasks: int = TASKS, **options: Any) -> Learner:
        """A learner that has learned the first tasks, by default all."""
        learner = self.create(**options)
        for task in range(tasks):
            learner.learn(task)
        return learner


RULES: Rules[LearnerCase] = Rules()


@RULES.rule
def _declared(case: LearnerCase) -> str | None:
    """The class declares name and title, and has a one-line summary.

    Set them as class attributes; see tood.learners.Learner for what each one means.
    """
    return wrong_declarations(case.learner)


@RULES.rule
def _settings(case: LearnerCase) -> str | None:
    """Settings are a frozen dataclass that inherits from tood.learners.Settings.

    Write @dataclass(frozen=True) class MySettings(Settings): ..., and annotate settings: MySettings in the learner.
    """
    kind: type = settings_class(case.learner)
    base = ClosedFormSettings if case.learner.closed_form else Settings
    return None if issubclass(kind, base) else f"settings: {kind.__name__}"


@RULES.rule
def _own_data_only(case: LearnerCase) -> str | None:
    """Training on task t uses training samples of tasks 0 to t only, never the reserved ones.

    Take rows from self.stream.train_rows(task) and from your memory; memory_rows() returns what is replayed.
    """
    stream = blobs(reserve=2)
    learner = case.create(stream=stream)
    read, allowed = _recorded_reads(learner), set()
    for task in range(TASKS):
        allowed.update(stream.train_rows(task).tolist())
        with contextlib.suppress(Exception):  # other rules report it
            learner.learn(task)
        rows = learner.memory_rows()
        foreign = (read | set(rows.tolist())) - allowed
        if foreign:
            return f"row {min(foreign)} of a later task, or reserved, used in task {task}"
        if len(np.unique(rows)) != len(rows):
            return f"memory_rows() has a row twice after task {task}"
    return None


@RULES.rule
def _learns(case: LearnerCase) -> str | None:
    """It learns: after learn(t) the head has the columns of tasks 0 to t, and predicts most training samples right.

    Return a scalar loss that depends on the logits of batch.columns, such as cross_entropy(logits, batch.columns);
    predict returns whole numbers [n]; the loop grows the head.
    """
    learner = case.create() if case.learner.closed_form else case.create(epochs=20)
    learner.learn(0)
    if learner.network.head.columns != learner.stream.sizes[0]:
        return f"{learner.network.head.columns} columns after task 0, expected {learner.stream.sizes[0]}"
    rows = learner.stream.train_rows(0)
    features, logits = learner.outputs(rows)
    columns = np.asarray(learner.predict(features.cpu().numpy(), logits.cpu().numpy()))
    if columns.shape != (len(logits),) or columns.dtype.kind not in "iu":
        return f"predictions of shape {columns.shape}, dtype {columns.dtype} for {len(logits)} samples"
    accuracy = (columns == learner.columns[rows]).mean()
    return None if accuracy > 0.8 else f"accuracy {accuracy:.0%} on task 0 after 20 epochs; two classes, well apart"


@RULES.rule
def _replays(case: LearnerCase) -> str | None:
    """A memory is replayed: training on a task reads samples of earlier ones from it.

    ReservoirLearner and ExemplarLearner replay by themselves; if you override batches, join rows of your memory.
    """

    def stop(task: int) -> None:
        raise Stop  # what end_task reads is not training

    learner = case.learned(tasks=1)
    memory, read = set(learner.memory_rows().tolist()), _recorded_reads(learner)
    learner.end_task = stop  # type: ignore[method-assign]
    with contextlib.suppress(Stop):
        learner.learn(1)
    return f"none of {len(memory)} samples in the memory was read" if memory and not memory & read else None


@RULES.rule
def _deterministic(case: LearnerCase) -> str | None:
    """The same seed gives the same weights bit for bit, another seed others; torch's random state is left alone.

    Draw from self.random (NumPy) or self.generator (torch); never call torch.manual_seed or np.random directly.
    """
    learned = {}
    for start_of_torch, seed in ((5, 0), (6, 0), (5, 1)):
        torch.manual_seed(start_of_torch)
        learner, before = case.create(seed=seed), torch.get_rng_state()
        for task in range(2):
            learner.learn(task)
        if not torch.equal(before, torch.get_rng_state()):
            return "torch's global random state changed"
        learned[start_of_torch, seed] = learner
    if not _same(learned[5, 0], learned[6, 0]):
        return "two runs with seed 0 end with different weights"
    return "seed 0 and seed 1 end with the same weights" if _same(learned[5, 0], learned[5, 1]) else None


@RULES.rule
def _resumes(case: LearnerCase) -> str | None:
    """A run that was interrupted in a task and resumed ends with the same weights and memory, bit for bit.

    List in remembers every attribute that training reads later: tensors, arrays, dictionaries of tensors, or objects
    with state_dict and load_state_dict.
    """
    undisturbed = case.learned()

    def stop(progress: Progress) -> None:
        if (progress.task, progress.epoch) == (1, 2):
            raise Stop

    with tempfile.TemporaryDirectory() as folder:
        interrupted = case.create()
        interrupted.learn(0, folder)
        with contextlib.suppress(Stop):
            interrupted.learn(1, folder, progress=stop)
            if not case.learner.closed_form:  # a closed-form learner has no epochs to interrupt
                return "training did not stop when the progress callback raised; do not override the loop's own learn"
        resumed = case.create()
        for task in range(TASKS):
            resumed.learn(task, folder)
    if not _same(undisturbed, resumed):
        return "other weights than without the interruption"
    if not np.array_equal(undisturbed.memory_rows(), resumed.memory_rows()):
        return "another memory than without the interruption"
    return None


def _recorded_reads(learner: Learner) -> set[int]:
    """The rows of the training data that the learner reads from now on."""
    source: Any = learner.stream.train
    take, read = source.take, set()

    def recording_take(rows: Any) -> Any:
        read.update(rows.tolist())
        return take(rows)

    source.take = recording_take
    return read


def _same(first: Learner, second: Learner) -> bool:
    a, b = first.network.state_dict(), second.network.state_dict()
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)

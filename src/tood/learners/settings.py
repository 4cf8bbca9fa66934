"""Learner settings: one frozen dataclass per learner, checked by its annotations and ranges."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeVar, get_type_hints

from tood.errors import UnknownNameError
from tood.settings import Above0, AtLeast0, Count, CountOrNone, From0Below1, From0To1, checked

# The ranges are named here too, because learners import them with their settings.
__all__ = ["Above0", "AtLeast0", "Count", "CountOrNone", "ExemplarSettings", "From0Below1", "From0To1"]
__all__ += ["ReservoirSettings", "Settings", "learning_rate", "make_settings", "settings_class"]


@dataclass(frozen=True)
class Settings:
    """Settings of stochastic gradient descent, common to all learners that train.

    An annotation such as ``Above0`` says which numbers are allowed.

    Parameters
    ----------
    epochs, batch_size:
        Epochs per task and samples per batch; batches of one epoch differ in size by at most one.
    lr, momentum, weight_decay:
        Settings of the optimiser, which restarts with each task.
    schedule:
        ``"multistep"`` (× ``gamma`` at each of the ``milestones``, in epochs), ``"one_cycle"`` (up to ``lr`` in 30 % of
        the steps, then down to nothing), ``"cosine"`` (down to 0) or ``"none"``.
    clip:
        Largest norm of a gradient; 0 for no limit.
    """

    epochs: Count = 170
    batch_size: Count = 128
    lr: Above0 = 0.1
    momentum: From0Below1 = 0.9
    weight_decay: AtLeast0 = 2e-4
    schedule: Literal["multistep", "one_cycle", "cosine", "none"] = "multistep"
    milestones: tuple[int, ...] = (60, 100, 140)
    gamma: AtLeast0 = 0.1
    clip: AtLeast0 = 1.0


@dataclass(frozen=True)
class ExemplarSettings(Settings):
    """Settings of learners that keep exemplars of each class.

    Parameters
    ----------
    memory:
        Number of exemplars.
    memory_unit:
        Unit of ``memory``: ``"total"``, shared equally by the classes seen, or ``"class"``, per class.
    selection:
        ``"herding"`` or ``"random"``.
    """

    memory: Count = 2000
    memory_unit: Literal["total", "class"] = "total"
    selection: Literal["herding", "random"] = "herding"


@dataclass(frozen=True)
class ReservoirSettings(Settings):
    """Settings of learners that keep a uniform sample of all training data seen.

    Parameters
    ----------
    memory:
        Number of samples.
    replay_size:
        Number of replayed samples per batch of new data; 0 for the size of the batch.
    """

    memory: Count = 500
    replay_size: CountOrNone = 0


SettingsT = TypeVar("SettingsT")


def settings_class(learner: type) -> type[Settings]:
    """The dataclass in the annotation of a learner's ``settings``."""
    return get_type_hints(learner)["settings"]


def make_settings(kind: type[SettingsT], given: Mapping[str, Any], prefix: str = "") -> SettingsT:
    """Settings from names and values; raises for an unknown name, a wrong type or a value out of range.

    Given names start with ``prefix``, here and in messages.
    """
    hints = {prefix + name: hint for name, hint in get_type_hints(kind, include_extras=True).items()}
    for name in given:
        if name not in hints:
            raise UnknownNameError("setting", name, hints)
    return kind(**{name.removeprefix(prefix): checked(name, value, hints[name]) for name, value in given.items()})


def learning_rate(settings: Settings, epoch: int, done: float) -> float:
    """The learning rate at a point in training; ``done`` is the completed share of the epoch."""
    if settings.schedule == "multistep":
        return settings.lr * settings.gamma ** sum(epoch >= milestone for milestone in settings.milestones)
    progress = (epoch + done) / settings.epochs
    if settings.schedule == "cosine":
        return settings.lr * _cosine(progress)
    if settings.schedule == "one_cycle":
        low = settings.lr / 25
        if progress < 0.3:
            return settings.lr + (low - settings.lr) * _cosine(progress / 0.3)
        return settings.lr * _cosine((progress - 0.3) / 0.7)
    return settings.lr


def _cosine(progress: float) -> float:
    """Half a period of a cosine, from 1 to 0."""
    return (1 + math.cos(math.pi * progress)) / 2

"""Learner settings: one frozen dataclass per learner, checked by its annotations."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

from tood.errors import ToodError, UnknownNameError

__all__ = ["ExemplarSettings", "ReservoirSettings", "Settings", "learning_rate", "make_settings", "settings_class"]


@dataclass(frozen=True)
class Settings:
    """Settings of stochastic gradient descent, common to all learners that train.

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

    epochs: int = 170
    batch_size: int = 128
    lr: float = 0.1
    momentum: float = 0.9
    weight_decay: float = 2e-4
    schedule: Literal["multistep", "one_cycle", "cosine", "none"] = "multistep"
    milestones: tuple[int, ...] = (60, 100, 140)
    gamma: float = 0.1
    clip: float = 1.0


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

    memory: int = 2000
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

    memory: int = 500
    replay_size: int = 0


SettingsT = TypeVar("SettingsT")


def settings_class(learner: type) -> type[Settings]:
    """The dataclass in the annotation of a learner's ``settings``."""
    annotated: type[Settings] = get_type_hints(learner)["settings"]
    return annotated


def make_settings(kind: type[SettingsT], given: dict[str, Any]) -> SettingsT:
    """Settings from names and values; raises for an unknown name or a wrong type."""
    hints = get_type_hints(kind)
    for name in given:
        if name not in hints:
            raise UnknownNameError("setting", name, hints)
    return kind(**{name: _checked(name, value, hints[name]) for name, value in given.items()})


def _checked(name: str, value: Any, hint: Any) -> Any:
    """``value``, checked against its annotation; raises an error that names the setting."""
    if get_origin(hint) is Literal:
        if value not in get_args(hint):
            raise UnknownNameError(name, value, get_args(hint))
        return value
    if get_origin(hint) is tuple:
        if not isinstance(value, (list, tuple)):
            raise ToodError(f"{name}: expected a list of numbers, found {value!r}")
        return tuple(_checked(name, item, get_args(hint)[0]) for item in value)
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        value = float(value)
    if type(value) is not hint:
        raise ToodError(f"{name}: expected {hint.__name__}, found {value!r}")
    if name in ("epochs", "batch_size", "memory") and value < 1:
        raise ToodError(f"{name}: expected 1 or more, found {value}")
    if isinstance(value, float) and not math.isfinite(value):
        raise ToodError(f"{name}: expected a finite number, found {value}")
    return value


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


def as_dict(settings: Any) -> dict[str, Any]:
    """Plain values that JSON can hold."""
    return {key: list(v) if isinstance(v, tuple) else v for key, v in dataclasses.asdict(settings).items()}

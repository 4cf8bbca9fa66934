"""Checkpoints: one safetensors file per task, replaced atomically during the task.

A state is a tree of dictionaries whose leaves are tensors or arrays. The file holds the leaves under names joined by
slashes, and the configuration as JSON. Nothing is unpickled.
"""

from __future__ import annotations

import copy
import json
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from tood.arrays import is_tensor, to_numpy
from tood.errors import ToodError
from tood.registry import described
from tood.storage.files import contained, read_tensors, write_tensors
from tood.streams.features import FeatureSource, content

if TYPE_CHECKING:
    from tood.learners.base import Learner
    from tood.streams import Source, Stream

__all__ = ["checkpoint_path", "describe_stream", "resume", "save"]

KIND = "tood-learner"
SOME = 64  # training images that show whether a data set changes its images itself


def checkpoint_path(directory: str | Path, task: int) -> Path:
    """The checkpoint file of one task."""
    return Path(directory) / f"task-{task:02d}.safetensors"


def describe_stream(stream: Stream) -> dict[str, Any]:
    """The identity of a stream in a checkpoint."""
    plain = {name: getattr(stream, name) for name in ("name", "reserve", "seed")}
    numbers = {name: np.round(getattr(stream, name), 6).tolist() for name in ("order", "sizes", "mean", "std")}
    labels = zlib.crc32(np.ascontiguousarray(stream.train.labels).tobytes())
    augmentation = described(stream.augmentation) if callable(stream.augmentation) else stream.augmentation
    return {**plain, **numbers, "augmentation": augmentation, "labels": labels, "samples": _samples(stream.train)}


def _samples(source: Source) -> str:
    """The identity of training samples: a digest, or the key of features; empty if a data set changes its images."""
    if isinstance(source, FeatureSource):
        return f"{source.key}{', standardised' if (source.scale != 1).any() else ''}"
    rows = np.linspace(0, len(source) - 1, num=min(SOME, len(source)), dtype=np.int64)
    return content(source)[:16] if np.array_equal(source.take(rows), source.take(rows)) else ""


def save(learner: Learner, path: Path, place: Mapping[str, Any], optimizer: torch.optim.Optimizer | None) -> None:
    """Write all state needed to resume; ``optimizer`` is given in the middle of a task."""
    if learner.fabric.is_global_zero:
        state: dict[str, Any] = {"network": learner.network.state_dict(), "facts": learner.facts}
        state["precision"] = learner.fabric.strategy.precision.state_dict()  # the loss scale of 16-mixed
        if optimizer is not None:
            state["optimizer"] = {
                str(i): {name: value for name, value in of.items() if value is not None}
                for i, of in optimizer.state_dict()["state"].items()
            }
            state["teacher"] = {} if learner.teacher is None else learner.teacher.state_dict()
        if learner.scoring_head is not None:
            state["scoring_head"] = learner.scoring_head.state_dict()
        for name in learner.remembers:
            value = getattr(learner, name)
            state[name] = value.state_dict() if hasattr(value, "state_dict") else value
        arrays = {name: to_numpy(leaf) if is_tensor(leaf) else np.asarray(leaf) for name, leaf in _leaves(state)}
        path.parent.mkdir(parents=True, exist_ok=True)
        metadata = {"config": json.dumps(learner.config(), sort_keys=True), "place": json.dumps(place)}
        write_tensors(path, KIND, arrays, metadata)
    learner.fabric.barrier()


def resume(learner: Learner, path: Path | None, ignored: str = "") -> tuple[dict[str, Any], dict[int, Any]]:
    """Load a checkpoint if there is one; returns its position in training and the optimiser's state.

    Raises if the file was made with another configuration; the entry ``ignored`` may differ.
    """
    if path is None or not path.exists():
        return {}, {}
    arrays, metadata = read_tensors(contained(path.parent, path), KIND)
    try:
        _check_configuration(learner, path, json.loads(metadata["config"]), ignored)
        place, state = json.loads(metadata["place"]), _tree(arrays)
        if place["task"] not in range(len(learner.stream.sizes)):
            raise ValueError(f"there is no task {place['task']}")
        _restore(learner, place["task"], state)
        learner.learned = place["task"] + bool(place.get("finished"))
        learner.old = sum(learner.stream.sizes[: place["task"]])
    except ToodError:
        raise
    except (KeyError, TypeError, ValueError, AttributeError, RuntimeError) as error:
        raise ToodError(f"{path}: incomplete ({error})") from error
    return place, {int(i): _tensors(of) for i, of in state.get("optimizer", {}).items()}


def _check_configuration(learner: Learner, path: Path, stored: Mapping[str, Any], ignored: str) -> None:
    """Raise at the first entry in which the configuration of a file differs from the learner's."""
    made, wanted = dict(_leaves(stored)), dict(_leaves(json.loads(json.dumps(learner.config()))))
    for name in sorted({*made, *wanted}):
        found, expected = made.get(name), wanted.get(name)
        if found == expected or name.partition("/")[0] == ignored:
            continue
        if name == "code":
            raise ToodError(
                f"{path}: made before {described(type(learner))} was edited; "
                f"choose another --out, or delete {path.parent} to train again"
            )
        name = name.replace("/", ".")
        raise ToodError(f"{path}: made with {name} = {found}, not {expected}; use the same or another directory")


def _restore(learner: Learner, task: int, state: dict[str, Any]) -> None:
    """Give a learner the state of a checkpoint; empty dictionaries are not in the file."""
    learner.set_teacher(None)
    if "teacher" in state:
        learner.expand_to(task - 1)
        teacher = copy.deepcopy(learner.network)
        teacher.load_state_dict(_tensors(state["teacher"]))
        learner.set_teacher(teacher)
    learner.expand_to(task)
    learner.network.load_state_dict(_tensors(state["network"]))
    if "scoring_head" in state:
        learner.scoring_head = copy.deepcopy(learner.network.head)
        learner.scoring_head.load_state_dict(_tensors(state["scoring_head"]))
    if "precision" in state:
        scale = {name: value.item() for name, value in state["precision"].items()}
        learner.fabric.strategy.precision.load_state_dict(scale)
    learner.facts = state.get("facts", {})
    for name in learner.remembers:
        value = getattr(learner, name)
        if hasattr(value, "load_state_dict"):
            value.load_state_dict(state[name])
        else:
            setattr(learner, name, _like(value, state.get(name, {}), learner.fabric.device))


def _like(value: Any, stored: Any, device: torch.device) -> Any:
    """``stored`` as the kind of ``value``: an array, a tensor, or a dictionary of tensors."""
    if isinstance(stored, Mapping):
        return {key: _like(None, leaf, device) for key, leaf in stored.items()}
    if isinstance(value, np.ndarray):
        return stored
    return torch.from_numpy(stored).to(device, value.dtype if is_tensor(value) else None)


def _tensors(arrays: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    return {name: torch.from_numpy(array) for name, array in arrays.items()}


def _leaves(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Leaves of nested dictionaries, with their keys joined by slashes."""
    for key, value in tree.items():
        if isinstance(value, Mapping):
            yield from _leaves(value, f"{prefix}{key}/")
        else:
            yield f"{prefix}{key}", value


def _tree(leaves: Mapping[str, Any]) -> dict[str, Any]:
    """The inverse of :func:`_leaves`."""
    tree: dict[str, Any] = {}
    for name, leaf in leaves.items():
        *folders, last = name.split("/")
        node = tree
        for folder in folders:
            node = node.setdefault(folder, {})
        node[last] = leaf
    return tree

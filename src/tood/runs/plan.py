"""``tood run --dry-run``: the plan of a run, with the time of training estimated from a batch."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import torch

from tood.learners import Learner
from tood.runs.build import build, fixed_network, learner_choice, load_stream, torch_threads
from tood.runs.config import RunConfig
from tood.storage.durations import duration
from tood.streams import Stream
from tood.streams.features import Extractor

__all__ = ["plan"]


def plan(config: RunConfig, folder: Path) -> dict[str, Any]:
    """The plan of a run as texts by name; raises what the run would raise before training. Nothing is written."""
    identity = config.identity
    named = config.stream if isinstance(config.stream, str) else config.stream.get("stream", "")
    network = config.network.removeprefix("timm:")
    own = [name for name in (str(named), config.learner, network, *config.detectors) if ":" in name]
    what = {"run": config.name, "folder": str(folder), "stream": identity.stream, "learner": identity.method}
    if own:
        return what | {"not checked": f"{', '.join(own)}: a dry run imports nothing of your own"}
    if images := _to_extract(config):
        return what | {"features": f"{images:,} images to extract first; then the plan has the time of training"}
    stream, learner = build(config)
    trained, parameters = _trained(learner), sum(p.numel() for p in learner.network.parameters())
    with torch_threads(config.threads):
        seconds = trained / _speed(stream, learner)
    return what | {
        "stream": f"{identity.stream}: {len(stream)} tasks, {len(stream.order)} classes, {len(stream.ood)} OOD sets",
        "learner": f"{identity.method}, preset {config.preset}: {learner.settings.epochs} epochs per task",
        "network": f"{parameters:,} parameters",
        "training": f"{trained:,} images, about {duration(seconds)} on this device",
        "detectors": ", ".join(config.detectors) or "all that need only stored outputs",
    }


def _to_extract(config: RunConfig) -> int:
    """The number of images whose features a frozen run must extract first."""
    choice = learner_choice(config)
    stream = load_stream(config, say=str)
    if not config.frozen or len(stream.train.shape) == 1:
        return 0
    return sum(Extractor(fixed_network(config, stream, choice.network), stream).missing(stream).values())


def _trained(learner: Learner) -> int:
    """Images in training, over all tasks and epochs."""
    new = [len(learner.training_rows(task)) for task in range(len(learner.stream))]
    replayed = [_replayed(learner, count, _memory(learner, task - 1)) if task else 0 for task, count in enumerate(new)]
    epochs: int = learner.settings.epochs
    return epochs * (sum(new) + sum(replayed))


def _memory(learner: Learner, step: int) -> int:
    """Samples in the memory after a step."""
    settings, stream = learner.settings, learner.stream
    memory: int = getattr(settings, "memory", 0)
    if getattr(settings, "memory_unit", "total") == "class":
        memory *= sum(stream.sizes[: step + 1])
    return min(memory, sum(len(stream.train_rows(task)) for task in range(step + 1)))


def _replayed(learner: Learner, new: int, memory: int) -> int:
    """Replayed samples per epoch: with each batch of new ones, or the whole memory once."""
    if not hasattr(learner.settings, "replay_size"):
        return memory
    size = learner.settings.replay_size or learner.settings.batch_size
    return new * min(size, memory) // learner.settings.batch_size


def _speed(stream: Stream, learner: Learner) -> float:
    """Images per second in training, timed on the second of two batches."""
    network = learner.network
    network.grow(len(stream.order))
    batch = stream.train_rows(0)[: learner.settings.batch_size]
    started = 0.0
    for _ in range(2):
        started = time.perf_counter()
        loss = network.train()(learner.draw(batch, len(batch)).inputs).sum()
        loss.backward()
        if loss.is_cuda:
            torch.cuda.synchronize(loss.device)
    return len(batch) / (time.perf_counter() - started)

"""``tood run --dry-run``: the plan of a run, with time and disk space estimated from a few batches."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from tood.learners import Learner
from tood.runs.build import build, fixed_network, learner_choice, load_stream, torch_threads
from tood.runs.config import RunConfig
from tood.runs.extract import BATCH, forward
from tood.storage.durations import duration
from tood.streams import Stream
from tood.streams.features import BATCH as FEATURE_BATCH
from tood.streams.features import Extractor

__all__ = ["Estimate", "plan"]


class Estimate(NamedTuple):
    """Estimated cost of a run on this device."""

    trained: int  # images in training, over all epochs
    forwarded: int  # images in evaluation, over all steps
    training: float  # seconds
    evaluation: float  # seconds
    disk: float  # bytes that stay
    parameters: int  # weights of the network


def plan(config: RunConfig, folder: Path) -> dict[str, Any]:
    """The plan of a run as texts by name; raises what the run would raise before training. Nothing is written."""
    identity = config.identity
    named = config.stream if isinstance(config.stream, str) else config.stream.get("stream", "")
    network = config.network.removeprefix("timm:")
    own = [name for name in (str(named), config.learner, network, *config.detectors) if ":" in name]
    if own:
        what = {"run": config.name, "folder": str(folder), "stream": identity.stream, "learner": identity.method}
        return what | {"not checked": f"{', '.join(own)}: a dry run imports nothing of your own"}
    stream, learner = build(config, dry=True)
    cost = _estimate(config, stream, learner)
    features = {"features": _extraction(config)} if config.frozen else {}
    return {
        "run": config.name,
        "folder": str(folder),
        "stream": f"{identity.stream}: {len(stream)} tasks, {len(stream.order)} classes, {len(stream.ood)} OOD sets",
        "learner": f"{identity.method}, preset {config.preset}: {learner.settings.epochs} epochs per task",
        "network": f"{cost.parameters:,} parameters",
        **features,
        "training": f"{cost.trained:,} images, about {duration(cost.training)} on this device",
        "evaluation": f"{cost.forwarded:,} images, about {duration(cost.evaluation)}",
        "disk": f"about {cost.disk / 1e6:.0f} MB",
        "detectors": ", ".join(config.detectors) or "all that need only stored outputs",
    }


def _estimate(config: RunConfig, stream: Stream, learner: Learner) -> Estimate:
    with torch_threads(config.threads):
        train_speed, forward_speed = _speeds(stream, learner)
    tasks = range(len(stream))
    new = [len(learner.training_rows(task)) for task in tasks]
    kept = [_memory(learner, step) for step in tasks]  # after each step
    replayed = [_replayed(learner, new[task], kept[task - 1]) if task else 0 for task in tasks]
    trained = learner.settings.epochs * (sum(new) + sum(replayed))
    ood = sum(len(s.source) for s in stream.ood)
    forwarded, drawn = 0, config.calibration_per_class(len(stream.order))
    for step in tasks:
        seen = [len(stream.train_rows(task)) for task in range(step + 1)]
        fit = sum(seen) if {"all", "paper"} & {*config.track} else kept[step] + drawn * sum(stream.sizes[: step + 1])
        forwarded += fit + sum(len(stream.test_rows(task)) for task in range(step + 1)) + ood
    parameters = sum(p.numel() for p in learner.network.parameters())
    disk = 16 * parameters  # with store: metrics only the last network stays
    if config.store == "all":
        state = sum(x.nbytes for name in learner.remembers if torch.is_tensor(x := getattr(learner, name)))
        disk = (disk + state) * len(stream) + 4 * forwarded * (len(stream.order) + learner.network.head.dim)
    return Estimate(trained, forwarded, trained / train_speed, forwarded / forward_speed, disk, parameters)


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


def _extraction(config: RunConfig) -> str:
    """What a frozen run must extract first, and how long that takes, timed on one batch."""
    stream = load_stream(config, say=str)
    if len(stream.train.shape) == 1:
        return "all in the cache"  # vectors already
    extractor = Extractor(fixed_network(config, stream, learner_choice(config).network), stream)
    images = sum(extractor.missing(stream).values())
    if not images:
        return "all in the cache"
    samples = stream.train.take(np.arange(min(FEATURE_BATCH, len(stream.train))))
    with torch_threads(config.threads):
        seconds = _seconds(lambda: extractor.forward(samples)) / len(samples)
    return f"{images:,} images to extract first, about {duration(images * seconds)}"


def _seconds(call: Callable[[], object]) -> float:
    """Seconds of the second of two calls: the first one also prepares things."""
    call()
    started = time.perf_counter()
    call()
    return time.perf_counter() - started


def _speeds(stream: Stream, learner: Learner) -> tuple[float, float]:
    """Images per second in training and in evaluation, timed on the second of two batches."""
    network = learner.network
    network.grow(len(stream.order))
    rows = stream.train_rows(0)

    def train() -> None:
        batch = rows[: learner.settings.batch_size]
        loss = network.train()(learner.draw(batch, len(batch)).inputs).sum()
        loss.backward()
        if loss.is_cuda:
            torch.cuda.synchronize(loss.device)

    speed = min(len(rows), learner.settings.batch_size) / _seconds(train)
    fused = network.eval().fused()
    return speed, min(len(rows), BATCH) / _seconds(lambda: forward(fused, stream, stream.train, rows[:BATCH]))

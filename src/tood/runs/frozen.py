"""Frozen runs: features of a fixed network are extracted once, and learners train on them."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from tood import models
from tood.models import Network
from tood.runs.check import LearnerChoice
from tood.runs.config import RunConfig
from tood.streams import Stream
from tood.streams.features import BATCH, Extractor, frozen

__all__ = ["extraction_left", "freeze"]

Say = Callable[[str], object]


def freeze(
    config: RunConfig,
    stream: Stream,
    choice: LearnerChoice,
    say: Say | None = None,
    dry: bool = False,
) -> tuple[Stream, Network]:
    """The stream as features of the frozen network, and the network that learns on them.

    Parameters
    ----------
    config:
        Configuration of the run.
    stream:
        A stream of images.
    choice:
        Name of the fixed network and width of the trained hidden layer. For a learner without gradient steps features
        are not standardised.
    say, dry:
        As for :func:`tood.streams.features.frozen`.
    """
    network = _network(config, stream, choice.network)
    vectors = frozen(stream, network, say=say, dry=dry, standardise=not choice.closed_form)
    widths = [choice.adapter] if choice.adapter else []
    return vectors, models.create("mlp", vectors.train.shape, seed=config.seed, widths=widths)


def _network(config: RunConfig, stream: Stream, name: str | None) -> Network:
    shape = stream.train.shape
    gpu = config.device in ("auto", "cuda") and torch.cuda.is_available()
    return models.create(name or models.suggest(shape), shape, seed=config.seed).to("cuda" if gpu else "cpu")


def extraction_left(config: RunConfig, stream: Stream, name: str | None) -> tuple[dict[Path, int], float]:
    """Files of features that are not extracted yet with their number of images, and the seconds per image."""
    if len(stream.train.shape) == 1:  # vectors already
        return {}, 0.0
    extractor = Extractor(_network(config, stream, name), stream)
    left = extractor.missing(stream)
    if not left:
        return {}, 0.0
    samples = stream.train.take(np.arange(min(BATCH, len(stream.train))))
    return left, seconds_of_second(lambda: extractor.forward(samples)) / len(samples)


def seconds_of_second(call: Callable[[], object]) -> float:
    """Seconds of the second of two calls: the first one also prepares things."""
    call()
    started = time.perf_counter()
    call()
    return time.perf_counter() - started

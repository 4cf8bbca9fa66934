"""What a configuration means: its names checked cheaply, then its stream and learner.

Frozen runs learn on features of a fixed network, extracted once.
"""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch

from tood import detectors, learners, models, streams
from tood.errors import ToodError
from tood.learners.base import LEARNERS
from tood.learners.processes import check_device
from tood.models import Network
from tood.runs.config import EXACT, RunConfig
from tood.streams import Stream
from tood.streams.features import frozen

__all__ = ["build", "check_config", "fixed_network", "learner_choice", "load_stream", "torch_threads"]

Say = Callable[[str], object]


class LearnerChoice(NamedTuple):
    """What a configuration and its preset say about the learner."""

    name: str  # without fine-tuning
    settings: dict[str, Any]  # arguments of learners.create
    network: str | None  # None for the default of the sample shape
    adapter: int  # of a frozen run
    closed_form: bool


def check_config(config: RunConfig) -> None:
    """Raise for an unknown name or a wrong setting of stream, learner, network, detectors or device.

    ``package.module:Class`` is imported. Errors that depend on the data are found only when a run starts.
    """
    streams.registry.check(config.stream, order=config.class_order, tasks=config.tasks or None, ood=config.ood)
    learner_choice(config)
    check_device(config.device, config.precision)


def learner_choice(config: RunConfig) -> LearnerChoice:
    """Learner, settings and network of a configuration: its own, else the preset's.

    Raises if one of them is wrong, or if a detector or track does not fit the learner.
    """
    identity, name = config.identity, config.without_finetuning().learner
    settings = learners.preset(config.preset, identity.stream, name, identity.finetune)
    adapter, suggested = settings.pop("adapter", 0), settings.pop("network", None)
    network = config.network or suggested
    for key in config.settings:
        if key in RunConfig.__dataclass_fields__:
            raise ToodError(
                f"settings: {key} is a setting of the run, not of the learner; use --{key} or {key}: in YAML"
            )
    settings |= config.settings
    own, _ = learners.checked_settings(name, identity.finetune, settings)
    if network:
        models.builder(network)  # raises if there is no such network
    closed_form = LEARNERS.get(name).closed_form
    if closed_form and config.adapter > 0:
        raise ToodError(f"adapter: {config.learner} takes no gradient steps to train one; expected 0")
    adapter = 0 if closed_form else adapter if config.adapter < 0 else config.adapter
    for detector in config.detectors:
        if "network" in detectors.create(detector).needs and config.frozen:
            raise ToodError(f"detectors: {detector} needs images, but a frozen run has only features")
    if config.track[0] == "memory" and not hasattr(own, "memory"):
        raise ToodError(
            f"track: {config.learner} keeps no memory, so scores that need old classes cannot be fitted; "
            "use another track, or calibration,memory for the scores that are not fitted"
        )
    return LearnerChoice(name, settings, network, adapter, closed_form)


def build(config: RunConfig, stream: Stream | None = None, say: Say | None = None) -> tuple[Stream, learners.Learner]:
    """Stream and learner of a configuration."""
    choice = learner_choice(config)
    stream = load_stream(config, say) if stream is None else stream
    if not stream.ood:
        raise ToodError(f"{stream.name}: expected at least one near- or far-OOD set to test against, found none")
    stream = dataclasses.replace(stream, seed=config.seed, reserve=config.reserved_per_class(len(stream.order)))
    if "calibration" in config.track and not stream.reserve:
        raise ToodError("track: calibration needs samples that are not trained on, but reserve is 0")
    network: Network | str | None = choice.network
    if config.frozen and len(stream.train.shape) > 1:  # not standardised for a learner without gradient steps
        fixed = fixed_network(config, stream, choice.network)
        stream = frozen(stream, fixed, say=say, standardise=not choice.closed_form)
    if config.frozen or (choice.closed_form and network is None and len(stream.train.shape) == 1):
        widths = [choice.adapter] if choice.adapter else []  # the vectors are the features of a frozen network
        network = models.create("mlp", stream.train.shape, seed=config.seed, widths=widths)
    exact = config.precision == "auto" and config.preset in EXACT  # what is compared with the paper
    learner = learners.create(
        choice.name,
        stream=stream,
        network=network,
        finetune=config.identity.finetune,
        seed=config.seed,
        device=config.device,
        precision="32-true" if exact else config.precision,
        **choice.settings,
    )
    return learner.stream, learner  # normalised as the network expects


def fixed_network(config: RunConfig, stream: Stream, name: str | None) -> Network:
    """The network whose features a frozen run learns on, by name or the default of the sample shape."""
    shape = stream.train.shape
    gpu = config.device in ("auto", "cuda") and torch.cuda.is_available()
    return models.create(name or models.suggest(shape), shape, seed=config.seed).to("cuda" if gpu else "cpu")


def load_stream(config: RunConfig, say: Say | None = None) -> Stream:
    """The stream of a configuration; ``say`` is called with a line about each OOD set that is missing."""
    with warnings.catch_warnings(record=True) as noted:
        warnings.simplefilter("always", UserWarning)
        stream = streams.load(config.stream, order=config.class_order, tasks=config.tasks or None, ood=config.ood)
    for note in noted:
        (say or print)(f"note: {note.message}")
    return stream


@contextmanager
def torch_threads(count: int) -> Iterator[None]:
    """Context in which torch uses this many threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)

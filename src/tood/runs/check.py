"""Checks of a configuration by name: cheap, without loading a data set or making a network."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any, NamedTuple

from tood import detectors, learners, models, streams
from tood.errors import ToodError
from tood.learners.processes import check_device
from tood.learners.registry import LEARNERS
from tood.runs.config import RunConfig

__all__ = ["LearnerChoice", "canonical", "check_config", "check_detectors", "check_memory", "learner_choice"]


class LearnerChoice(NamedTuple):
    """What a configuration and its preset say about the learner."""

    name: str  # without fine-tuning
    settings: dict[str, Any]  # arguments of learners.create
    network: str | None  # None for the default of the sample shape
    adapter: int  # of a frozen run
    keeps_memory: bool
    closed_form: bool


def check_config(config: RunConfig) -> None:
    """Raise for an unknown name or a wrong setting of stream, learner, network, detectors or device.

    ``package.module:Class`` is imported. Errors that depend on the data are found only when a run starts.
    """
    streams.registry.check(config.stream, order=config.class_order, tasks=config.tasks or None, ood=config.ood)
    choice = learner_choice(config)
    check_memory(config, choice.keeps_memory)
    check_detectors(config.detectors, config.frozen)
    check_device(config.device, config.precision)


def canonical(config: RunConfig) -> RunConfig:
    """The configuration without a network or adapter that the preset has anyway: its run has the same directory."""
    if not (config.network or config.adapter >= 0) or ":" in config.learner:  # nothing of the user's is imported
        return config
    name = config.without_finetuning().learner
    try:
        settings = learners.preset(config.preset, config.identity.stream, name, config.identity.finetune)
    except ToodError:  # an unknown name, which check_config reports
        return config
    changes: dict[str, Any] = {}
    if config.network == settings.get("network"):
        changes["network"] = ""
    if config.adapter == settings.get("adapter", 0):
        changes["adapter"] = -1
    return dataclasses.replace(config, **changes)


def learner_choice(config: RunConfig) -> LearnerChoice:
    """Learner, settings and network of a configuration: its own, else the preset's. Raises if one is wrong."""
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
    return LearnerChoice(name, settings, network, adapter, hasattr(own, "memory"), closed_form)


def check_detectors(names: Iterable[str], frozen: bool) -> None:
    """Raise for an unknown detector, or for one that needs images in a frozen run."""
    for name in names:
        if "network" in detectors.create(name).needs and frozen:
            raise ToodError(f"detectors: {name} needs images, but a frozen run has only features")


def check_memory(config: RunConfig, keeps_memory: bool) -> None:
    """Raise if the first track is a memory that the learner does not keep."""
    if config.track[0] == "memory" and not keeps_memory:
        raise ToodError(
            f"track: {config.learner} keeps no memory, so scores that need old classes cannot be fitted; "
            "use another track, or calibration,memory for the scores that are not fitted"
        )

"""Learners: continual-learning methods, one file each, on one training loop.

>>> from tood import learners, streams
>>> learner = learners.create("er", stream=streams.load("digits"), epochs=1, memory=80)
>>> learner.learn(0)
>>> learner.network.head.columns
2
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any

from tood.errors import MissingDependencyError, ToodError, UnknownNameError
from tood.registry import naming_errors, source_digest

try:
    import lightning_fabric  # noqa: F401
    import torch  # noqa: F401
except ImportError as error:
    raise MissingDependencyError("torch and lightning-fabric", "train", "training") from error

from tood.learners.base import LEARNERS, Batch, Learner, register
from tood.learners.ber import BER, BERSettings
from tood.learners.preset_files import preset, presets
from tood.learners.processes import start
from tood.learners.progress import Progress
from tood.learners.settings import Settings, make_settings, settings_class
from tood.models import Network, suggest
from tood.models import create as create_network
from tood.streams import Stream

__all__ = ["Batch", "Learner", "Progress", "Settings", "classes", "create", "names", "preset", "presets", "register"]

for _module in pkgutil.iter_modules(__path__):  # each file of a method registers it
    importlib.import_module(f"{__name__}.{_module.name}")

FINETUNINGS = ("none", "ber")


def names() -> list[str]:
    """Names of all learners: built in, registered and installed."""
    return sorted(LEARNERS.names())


def classes() -> dict[str, type[Learner]]:
    """The classes of built-in and registered learners by name; title and citation are class attributes."""
    return dict(sorted(LEARNERS.items()))


def settings_of(name: str, finetune: str = "none") -> dict[str, Any]:
    """The settings of a learner with their defaults; settings of BER start with ``ber_``."""
    own = {f.name: f.default for f in fields(settings_class(LEARNERS.get(name)))}
    return own | ({f"ber_{f.name}": f.default for f in fields(BERSettings)} if finetune == "ber" else {})


def create(
    name: str,
    stream: Stream,
    network: Network | str | None = None,
    finetune: str = "none",
    seed: int = 0,
    device: str = "auto",
    precision: str = "auto",
    **settings: Any,
) -> Learner:
    """A learner by name, ready for task 0.

    Parameters
    ----------
    name:
        One of :func:`names`, or ``package.module:Class``.
    stream:
        The stream to learn.
    network:
        The name of a network, a network of your own (its head is emptied), or None for a default that fits the samples.
    finetune:
        ``"ber"`` to fine-tune a second head after each task (:attr:`Learner.scoring_head`), as OpenCIL does.
    seed:
        Seed of the initial weights and of every random choice.
    device, precision:
        See :func:`tood.learners.processes.start`.
    settings:
        The learner's settings, such as ``epochs``, ``lr``, ``memory``; BER's names start with ``ber_``.

    Examples
    --------
    >>> from tood import learners, streams
    >>> learners.create("icarl", streams.load("digits"), epoch=3)
    Traceback (most recent call last):
    tood.errors.UnknownNameError: unknown setting 'epoch'; did you mean 'epochs'?
    """
    if not isinstance(seed, int) or seed < 0:
        raise ToodError(f"seed: expected a whole number of 0 or more, found {seed!r}")
    own_settings, ber_settings = checked_settings(name, finetune, settings)
    kind = LEARNERS.get(name)
    source_digest(kind)  # now: once the learner trains, its file may be edited
    if network is None or isinstance(network, str):
        network = create_network(network or suggest(stream.train.shape), stream.train.shape, seed=seed)
    fabric = start(device, precision)
    with naming_errors(kind, "__init__"):
        learner = kind(_normalised_for(network, stream), network, own_settings, seed, fabric)
    learner.ber = BER(ber_settings) if finetune == "ber" else None
    return learner


def checked_settings(name: str, finetune: str, settings: Mapping[str, Any]) -> tuple[Settings, BERSettings]:
    """The settings of a learner and of BER from values by name; raises for an unknown name or a wrong value."""
    if finetune not in FINETUNINGS:
        raise UnknownNameError("finetune", finetune, FINETUNINGS)
    ber = {key: value for key, value in settings.items() if finetune == "ber" and key.startswith("ber_")}
    own = {key: value for key, value in settings.items() if key not in ber}
    return make_settings(settings_class(LEARNERS.get(name)), own), make_settings(BERSettings, ber, prefix="ber_")


def _normalised_for(network: Network, stream: Stream) -> Stream:
    """The stream, with the normalisation of the network's pretrained weights if it has any."""
    expected = network.normalisation(len(stream.mean))
    return replace(stream, mean=expected[0], std=expected[1]) if expected else stream

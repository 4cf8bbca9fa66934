"""Learners: continual-learning methods, one file each, on one training loop.

>>> from tood import learners, streams
>>> learner = learners.create("er", stream=streams.load("digits"), epochs=1, memory=80)
>>> learner.learn(0)
>>> learner.network.head.columns
2
"""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

from tood.errors import MissingDependencyError, ToodError, UnknownNameError

try:
    import lightning_fabric  # noqa: F401
    import torch  # noqa: F401
except ImportError as error:
    raise MissingDependencyError("torch and lightning-fabric", "train", "training") from error

from tood.learners.agem import AGEM
from tood.learners.base import Batch, Learner
from tood.learners.ber import BER, BERSettings
from tood.learners.bic import BiC
from tood.learners.der import DER, DERpp
from tood.learners.er import ER
from tood.learners.ewc import EWC
from tood.learners.fecam import FeCAM
from tood.learners.finetune import FineTune
from tood.learners.gem import GEM
from tood.learners.icarl import ICaRL
from tood.learners.joint import Joint
from tood.learners.lwf import LwF
from tood.learners.ncm import NCM
from tood.learners.preset_files import preset, presets
from tood.learners.processes import start
from tood.learners.progress import Progress
from tood.learners.ranpac import RanPAC
from tood.learners.settings import Settings, make_settings, settings_class
from tood.learners.si import SI
from tood.learners.slda import SLDA
from tood.learners.wa import WA
from tood.models import Network, suggest
from tood.models import create as create_network
from tood.streams import Stream

__all__ = ["Batch", "Learner", "Progress", "Settings", "create", "names", "preset", "presets"]

KINDS = (AGEM, BiC, DER, DERpp, ER, EWC, FeCAM, FineTune, GEM, ICaRL, Joint, LwF, NCM, RanPAC, SI, SLDA, WA)
LEARNERS: dict[str, type[Learner]] = {learner.name: learner for learner in KINDS}
WITH_BER = "+ber"


def names() -> list[str]:
    """The learners :func:`create` knows. Each can have BER's second head: ``"icarl+ber"``; ``"ber"`` is that one."""
    return sorted([*LEARNERS, "ber"])


def settings_of(name: str) -> dict[str, Any]:
    """The settings of a learner and their defaults."""
    base, ber = split_name(name)
    own = {f.name: f.default for f in fields(settings_class(LEARNERS[base]))}
    return own | ({f"ber_{f.name}": f.default for f in fields(BERSettings)} if ber else {})


def create(
    name: str,
    stream: Stream,
    network: Network | str | None = None,
    seed: int = 0,
    device: str = "auto",
    precision: str = "auto",
    **settings: Any,
) -> Learner:
    """A learner by name, ready for task 0.

    Parameters
    ----------
    name:
        One of :func:`names`; with ``+ber`` behind it, each task also gives :attr:`Learner.scoring_head`.
    stream:
        What it learns.
    network:
        The name of a network, a network of your own (its head is emptied), or None for one that suits the samples.
    seed:
        Of the initial weights and of every random choice.
    device, precision:
        See :func:`tood.learners.processes.start`.
    settings:
        Those of the learner, such as ``epochs``, ``lr``, ``memory``; BER's have ``ber_`` before their names.

    Examples
    --------
    >>> from tood import learners, streams
    >>> learners.create("icarl", streams.load("digits"), epoch=3)
    Traceback (most recent call last):
    tood.errors.UnknownNameError: unknown setting 'epoch'; did you mean 'epochs'?
    """
    base, with_ber = split_name(name)
    if not isinstance(seed, int) or seed < 0:
        raise ToodError(f"seed: expected a whole number of 0 or more, found {seed!r}")
    kind = LEARNERS[base]
    ber = {key.removeprefix("ber_"): settings.pop(key) for key in list(settings) if with_ber and key.startswith("ber_")}
    made = make_settings(settings_class(kind), settings)
    extra = make_settings(BERSettings, ber)
    if network is None or isinstance(network, str):
        network = create_network(network or suggest(stream.train.shape), stream.train.shape, seed=seed)
    learner = kind(_normalised_for(network, stream), network, made, seed, start(device, precision))
    learner.ber = BER(extra) if with_ber else None
    return learner


def _normalised_for(network: Network, stream: Stream) -> Stream:
    """The stream with the normalisation that pretrained weights expect, if they expect one."""
    expected = getattr(network.backbone, "normalisation", None)
    if expected is None:
        return stream
    mean, std = ((value,) * len(stream.mean) for value in expected)
    return replace(stream, mean=mean, std=std)


def split_name(name: str) -> tuple[str, bool]:
    """The learner's own name, and whether BER's head is wanted too."""
    base = "icarl" if name == "ber" else name.removesuffix(WITH_BER)
    if base not in LEARNERS:
        raise UnknownNameError("learner", name, names())
    return base, name == "ber" or base != name

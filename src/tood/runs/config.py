"""Configuration of a run: every choice by name, from a YAML file and the command line. A typo is an error."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Any, Literal, TypeAlias, get_args

from tood.errors import ToodError, UnknownNameError
from tood.runs.identity import RunIdentity, short_name, split_method
from tood.streams.catalog import family
from tood.streams.described import stream_name

__all__ = ["RunConfig"]

CalibrationSource: TypeAlias = Literal["train", "memory", "reserved", "augmented"]
FitData: TypeAlias = Literal["current", "all", "memory"]
Logits: TypeAlias = Literal["both", "corrected", "raw"]
Store: TypeAlias = Literal["all", "figures"]

CALIBRATION_SIZES = {"cifar10": 200, "cifar100": 700}  # the paper's B
PER_CLASS = 10  # for every other stream
EXACT = ("paper", "released")  # presets that train on all samples and reserve none
# Defaults of evaluation that a preset changes: "released" evaluates as the authors of the paper did.
EVALUATED = {"released": {"calibration": "augmented", "fit": "all"}}
# Settings of evaluation: changing them needs no new training.
EVALUATION = ("ood", "calibration", "fit", "detectors", "logits", "store", "device", "threads")
# Those of them that change the metrics of a detector.
MEASURING = ("ood", "calibration", "fit", "logits")
# Settings that are part of a run's label in tables.
OPTIONS = (
    *("order", "tasks", "ood", "network", "frozen", "adapter"),
    *("calibration", "calibration_size", "reserve", "fit", "precision"),
)
# Settings always included in the hash of a folder name. Newer settings are included only if set, so that the folder
# names of older runs stay valid.
ALWAYS_NAMED = (
    *("stream", "learner", "preset", "seed", "order", "tasks", "network", "settings", "calibration"),
    *("calibration_size", "reserve", "fit", "detectors", "device", "threads"),
)
# Settings that are whole numbers, with the least value of each.
WHOLE_NUMBERS = {"seed": 0, "tasks": 0, "calibration_size": 0, "reserve": -1, "adapter": -1, "threads": 1}


@dataclass(frozen=True)
class RunConfig:
    """Configuration of one run.

    Parameters
    ----------
    stream:
        A stream's name, ``package.module:factory``, or a mapping that describes one: ``{"npz": FILE, "tasks": 5}``
        (see :func:`tood.streams.load`).
    learner:
        A learner's name or ``package.module:Class``. With the suffix ``+ber``, the run is scored with the head that
        OpenCIL's BER fine-tunes after each task.
    preset:
        The preset of the learner's settings: ``"cpu"``, ``"paper"``, ``"released"``, ``"frozen"`` or ``"smoke"``. By
        default ``"cpu"``, or ``"frozen"`` for a frozen run.
    seed:
        Seed of every random choice.
    order, tasks:
        Class order (``"label"`` or the seed of a permutation) and number of tasks; the stream's own by default.
    ood:
        Names of the OOD sets to use; empty for all.
    network:
        The network's name; the preset's by default.
    frozen:
        Learn on the features of a fixed network, which are extracted once. Implied by the preset ``frozen``. See the
        page "Start from a pretrained network".
    adapter:
        With ``frozen``: the width of a trained hidden layer with ReLU between features and head; 0 for none, -1 for the
        preset's.
    settings:
        Learner settings that replace the preset's.
    calibration:
        Source of the calibration set: ``"train"`` (random training data of each task), ``"memory"`` (replayed
        exemplars, as in the paper's text), ``"reserved"`` (samples never trained on) or ``"augmented"`` (training data
        augmented as in training, B shared by the classes seen so far, as in the authors' code). The default depends on
        the preset: ``"augmented"`` for ``released``, else ``"train"``.
    calibration_size:
        B, over all classes of the stream; 0 for the paper's size, or ten per class if the paper states none.
    reserve:
        Samples per class that are never trained on; -1 for as many as in the calibration set, or for none with the
        presets that reproduce the paper exactly.
    fit:
        The fit set of detectors: ``"current"`` (the task's training data and the memory), ``"memory"`` or ``"all"``
        (all training data seen, an oracle). The default depends on the preset: ``"all"`` for ``released``, else
        ``"current"``.
    detectors:
        Names or ``package.module:Class``; empty for all detectors that need only stored outputs.
    logits:
        For a learner that corrects its head (BiC): score the ``"corrected"`` logits, the ``"raw"`` ones or ``"both"``.
    store:
        ``"all"``, or ``"figures"`` to delete outputs, scores and checkpoints once the run is complete, which needs a
        hundred times less disk space. The metrics, ``learner.json`` and the last network stay.
    device:
        Where to train and evaluate: ``"auto"``, ``"cpu"``, ``"cuda"`` or ``"mps"``.
    precision:
        ``"32-true"``, ``"bf16-mixed"`` (GPUs only) or ``"auto"``: mixed on a GPU that supports it.
    threads:
        Threads of torch on the CPU. With one, the same seed gives the same bits; more are faster on an idle machine
        and much slower on a busy one.
    """

    stream: str | Mapping[str, Any] = "digits"
    learner: str = "icarl"
    preset: str = ""
    seed: int = 0
    order: str | int = "label"
    tasks: int = 0
    ood: tuple[str, ...] = ()
    network: str = ""
    frozen: bool = False
    adapter: int = -1
    settings: Mapping[str, Any] = field(default_factory=dict)
    calibration: CalibrationSource | Literal[""] = ""
    calibration_size: int = 0
    reserve: int = -1
    fit: FitData | Literal[""] = ""
    detectors: tuple[str, ...] = ()
    logits: Logits = "both"
    store: Store = "all"
    device: str = "auto"
    threads: int = 1
    precision: str = "auto"

    def __post_init__(self) -> None:
        object.__setattr__(self, "preset", self.preset or ("frozen" if self.frozen is True else "cpu"))
        for name, value in {"calibration": "train", "fit": "current", **EVALUATED.get(self.preset, {})}.items():
            object.__setattr__(self, name, getattr(self, name) or value)
        choices = {"calibration": CalibrationSource, "fit": FitData, "logits": Logits, "store": Store}
        for name, allowed in choices.items():
            if getattr(self, name) not in get_args(allowed):
                raise UnknownNameError(name, getattr(self, name), get_args(allowed))
        for name, least in WHOLE_NUMBERS.items():
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise ToodError(f"{name}: expected a whole number, {least} or more, found {value!r}")
        for name in ("learner", "preset", "network", "device", "precision"):
            if not isinstance(getattr(self, name), str):
                raise ToodError(f"{name}: expected a name, found {getattr(self, name)!r}")
        for name in ("detectors", "ood"):
            if isinstance(getattr(self, name), list):
                object.__setattr__(self, name, tuple(getattr(self, name)))
            if not (isinstance(getattr(self, name), tuple) and all(isinstance(n, str) for n in getattr(self, name))):
                raise ToodError(f"{name}: expected a tuple of names, found {getattr(self, name)!r}")
        if not isinstance(self.frozen, bool):
            raise ToodError(f"frozen: expected true or false, found {self.frozen!r}")
        if self.preset == "frozen":
            object.__setattr__(self, "frozen", True)
        if self.adapter >= 0 and not self.frozen:
            raise ToodError("adapter: expected frozen: true (--frozen), found a network that is trained as a whole")
        if not (isinstance(self.settings, Mapping) and all(isinstance(name, str) for name in self.settings)):
            raise ToodError(f"settings: expected a mapping of learner settings, found {self.settings!r}")
        order = self.order
        if order != "label" and (isinstance(order, bool) or not isinstance(order, int) or order < 0):
            raise ToodError(f"order: expected 'label' or the seed of a permutation, found {order!r}")
        stream_name(self.stream)  # raises unless it is a name or a mapping

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any], where: str = "config") -> RunConfig:
        """From plain values, such as those of a YAML file; ``where`` names the file in messages.

        Names may be a list or text with commas. An unknown setting is an error that suggests the nearest known one.
        """
        known = {f.name for f in dataclasses.fields(cls)}
        for name in values:
            if name not in known:
                raise UnknownNameError(f"setting of {where}", str(name), known)
        settings = dict(values)
        try:
            if settings.get("preset") == "frozen" and settings.get("frozen") is False:
                raise ToodError("frozen: expected true with the preset frozen, found false")
            for name in ("detectors", "ood"):
                value = settings.get(name)
                if isinstance(value, str):
                    value = [part.strip() for part in value.split(",") if part.strip()]
                settings[name] = () if value is None else value
            return cls(**settings)
        except ToodError as error:
            raise ToodError(f"{where}: {error}") from error

    def to_mapping(self) -> dict[str, Any]:
        """Plain values, the inverse of :meth:`from_mapping`."""
        return {f.name: _plain(getattr(self, f.name)) for f in dataclasses.fields(self)}

    @property
    def identity(self) -> RunIdentity:
        """Identity of the run."""
        learner, finetune = split_method(self.learner)
        default = RunConfig(preset=self.preset)
        options = {name: getattr(self, name) for name in OPTIONS if getattr(self, name) != getattr(default, name)}
        if "ood" in options:
            options["ood"] = ",".join(self.ood)
        return RunIdentity(
            stream=stream_name(self.stream),
            learner=short_name(learner),
            finetune=finetune,
            options=options | dict(self.settings),
            preset=self.preset,
            seed=self.seed,
            tag=self._tag(),
        )

    @property
    def name(self) -> str:
        """Name of the run directory: ``STREAM-LEARNER-PRESET-sSEED``, and a short hash of any further settings."""
        return self.identity.folder

    def _tag(self) -> str:
        """Short hash of the settings that the folder name does not show; empty if they are defaults."""
        ignored = {"device": "", "threads": 0, "detectors": [], "store": "all"}  # no effect on the networks
        values = self.to_mapping() | ignored
        named = {"stream": stream_name(self.stream), "learner": short_name(self.learner), "seed": self.seed}
        shown = RunConfig(preset=self.preset).to_mapping() | ignored | named
        if values == shown:
            return ""
        kept = {name: value for name, value in values.items() if name in ALWAYS_NAMED or value != shown[name]}
        return hashlib.sha256(json.dumps(kept, sort_keys=True).encode()).hexdigest()[:6]

    def without_finetuning(self) -> RunConfig:
        """The configuration without BER, which trains the same networks."""
        settings = {name: value for name, value in self.settings.items() if not name.startswith("ber_")}
        return dataclasses.replace(self, learner=split_method(self.learner)[0], settings=settings)

    def calibration_per_class(self, classes: int) -> int:
        """Samples per class in the calibration set."""
        size = self.calibration_size or CALIBRATION_SIZES.get(family(stream_name(self.stream)), PER_CLASS * classes)
        if size < classes:
            raise ToodError(
                f"calibration_size: expected at least one sample for each of {classes} classes, found {size}"
            )
        return size // classes

    def reserved_per_class(self, classes: int) -> int:
        """Samples per class that are never trained on."""
        if self.reserve >= 0:
            return self.reserve
        return 0 if self.preset in EXACT else self.calibration_per_class(classes)


def _plain(value: Any) -> Any:
    """A value as YAML gives it back: dictionaries, lists and text in place of other mappings, tuples and paths."""
    if isinstance(value, Mapping):
        return {name: _plain(item) for name, item in value.items()}
    if isinstance(value, (tuple, list)):
        return [_plain(item) for item in value]
    return str(value) if isinstance(value, PurePath) else value

"""What a run is: every choice by name, from a YAML file and the command line, a typo being an error."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeAlias, get_args

from tood.errors import MissingDependencyError, ToodError, UnknownNameError
from tood.files import write_text

__all__ = ["RunConfig", "parse_settings", "read_yaml", "write_yaml"]

CalibrationSource: TypeAlias = Literal["train", "memory", "reserved", "augmented"]
FitData: TypeAlias = Literal["current", "all", "memory"]

CALIBRATION_SIZES = {"cifar10": 200, "cifar100": 700}  # the paper's B
PER_CLASS = 10  # of any other stream
EXACT = ("paper", "released")  # presets that train on every sample, so nothing is set aside


@dataclass(frozen=True)
class RunConfig:
    """One run.

    Parameters
    ----------
    stream, learner, preset, seed:
        What is learnt, how, with whose settings. A learner such as ``"icarl+ber"`` is scored with OpenCIL's
        fine-tuned head (BER) in place of its own.
    order, tasks:
        The class order (``"label"`` or the seed of a permutation) and the number of tasks, where not the stream's own.
    network:
        The network's name where it is not the preset's.
    frozen:
        Keep the network as it is and learn on its features, which are extracted once; the preset ``frozen`` sets it,
        and is the default with it. See docs/how-to/pretrained.md.
    adapter:
        With ``frozen``: the width of a trained hidden layer with ReLU between features and head; 0 for none, -1 for the
        preset's.
    settings:
        Learner settings that replace the preset's.
    calibration:
        Where the calibration set comes from: ``"train"`` (random training data of each task), ``"memory"`` (replayed
        exemplars, as the paper's text says), ``"reserved"`` (set aside at arrival) or ``"augmented"`` (training data
        augmented as in training, B shared by the classes seen so far, as the paper's authors do).
    calibration_size:
        B, over all classes of the stream; 0 means the paper's size, or ten a class where it gives none.
    reserve:
        Samples a class set aside at arrival; -1 means as many as the calibration set has, and none for the presets
        that reproduce the paper exactly.
    fit:
        What detectors fit on: ``"current"`` (the task's training data and the memory), ``"memory"`` or ``"all"``
        (all training data seen, an oracle).
    detectors:
        Their names; empty means every one that does not need the network again.
    device:
        Where to train and evaluate: ``"auto"``, ``"cpu"``, ``"cuda"`` or ``"mps"``.
    precision:
        ``"32-true"``, ``"bf16-mixed"`` (GPUs only) or ``"auto"``: mixed on a GPU that can.
    threads:
        Of torch on the CPU. With one, the same seed gives the same bits; more are faster on an idle machine and much
        slower on a busy one.
    """

    stream: str = "digits"
    learner: str = "icarl"
    preset: str = "cpu"
    seed: int = 0
    order: str | int = "label"
    tasks: int = 0
    network: str = ""
    frozen: bool = False
    adapter: int = -1
    settings: Mapping[str, Any] = field(default_factory=dict)
    calibration: CalibrationSource = "train"
    calibration_size: int = 0
    reserve: int = -1
    fit: FitData = "current"
    detectors: tuple[str, ...] = ()
    device: str = "auto"
    threads: int = 1
    precision: str = "auto"

    def __post_init__(self) -> None:
        if self.learner == "ber":  # the learners' name for it
            object.__setattr__(self, "learner", "icarl+ber")
        for name, allowed in (("calibration", CalibrationSource), ("fit", FitData)):
            if getattr(self, name) not in get_args(allowed):
                raise UnknownNameError(name, getattr(self, name), get_args(allowed))
        for name in ("seed", "tasks", "calibration_size"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 0:
                raise ToodError(f"{name}: expected a whole number, 0 or more, found {value!r}")
        if not isinstance(self.frozen, bool):
            raise ToodError(f"frozen: expected true or false, found {self.frozen!r}")
        if self.preset == "frozen":
            object.__setattr__(self, "frozen", True)
        if isinstance(self.adapter, bool) or not isinstance(self.adapter, int) or self.adapter < -1:
            raise ToodError(f"adapter: expected the width of a layer, 0 for none, found {self.adapter!r}")
        if self.adapter >= 0 and not self.frozen:
            raise ToodError("adapter: expected frozen: true (--frozen), found a network that is trained as a whole")
        if not isinstance(self.settings, Mapping):
            raise ToodError(f"settings: expected a mapping of learner settings, found {self.settings!r}")
        if not (self.order == "label" or (isinstance(self.order, int) and self.order >= 0)):
            raise ToodError(f"order: expected 'label' or the seed of a permutation, found {self.order!r}")

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any], where: str = "config") -> RunConfig:
        """From plain values, as a YAML file holds them; an unknown name is an error with the nearest known one."""
        known = {f.name for f in dataclasses.fields(cls)}
        for name in values:
            if name not in known:
                raise UnknownNameError(f"setting of {where}", name, known)
        given = dict(values)
        if given.get("frozen"):
            given.setdefault("preset", "frozen")
        if given.get("preset") == "frozen" and given.get("frozen") is False:
            raise ToodError("frozen: expected true with the preset frozen, found false")
        if "detectors" in given:
            names = given["detectors"] or ()
            given["detectors"] = tuple(names.split(",") if isinstance(names, str) else names)
        return cls(**given)

    def to_mapping(self) -> dict[str, Any]:
        """Plain values, the inverse of :meth:`from_mapping`."""
        values = dataclasses.asdict(self)
        return values | {"detectors": list(self.detectors), "settings": dict(self.settings)}

    @property
    def name(self) -> str:
        """The run's folder: ``STREAM-LEARNER-PRESET-sSEED``, and a short hash of anything else that was set."""
        plain = RunConfig(self.stream, self.learner, self.preset, self.seed, device=self.device, threads=self.threads)
        parts = [self.stream, self.learner, self.preset, f"s{self.seed}"]
        if plain != self:
            values = self.to_mapping() | {"device": "", "threads": 0}
            for name, default in (("precision", "auto"), ("frozen", False), ("adapter", -1)):
                if values[name] == default:  # names are older than these settings
                    del values[name]
            text = json.dumps(values, sort_keys=True)
            parts.append(hashlib.sha256(text.encode()).hexdigest()[:6])
        return "-".join(parts)

    def options(self) -> dict[str, Any]:
        """What sets the run apart from others of its stream, learner, preset and seed; the manifest has it."""
        plain = RunConfig(preset=self.preset)
        names = ("order", "tasks", "network", "frozen", "adapter", "calibration", "calibration_size", "reserve", "fit")
        found = {n: getattr(self, n) for n in (*names, "precision") if getattr(self, n) != getattr(plain, n)}
        return found | dict(self.settings)

    def without_ber(self) -> RunConfig:
        """The run whose networks are the same, but for BER's second head."""
        settings = {name: value for name, value in self.settings.items() if not name.startswith("ber_")}
        return dataclasses.replace(self, learner=self.learner.removesuffix("+ber"), settings=settings)

    def samples_a_class(self, classes: int) -> int:
        """The size of the calibration set, a class."""
        size = self.calibration_size or CALIBRATION_SIZES.get(self.stream.split("-")[0], PER_CLASS * classes)
        if size < classes:
            raise ToodError(
                f"calibration_size: expected at least one sample for each of {classes} classes, found {size}"
            )
        return size // classes

    def reserved_a_class(self, classes: int) -> int:
        """How many samples of each class are never trained on."""
        if self.reserve >= 0:
            return self.reserve
        return 0 if self.preset in EXACT else self.samples_a_class(classes)


def read_yaml(path: str | Path) -> dict[str, Any]:
    """The mapping in a YAML file."""
    yaml = _yaml()
    try:
        content = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise ToodError(f"{path}: no such file") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ToodError(f"{path}: cannot be read as YAML ({str(error).splitlines()[0]})") from error
    if not isinstance(content, dict):
        raise ToodError(f"{path}: expected a mapping of settings, found {type(content).__name__}")
    return content


def write_yaml(path: Path, content: Mapping[str, Any]) -> None:
    """Write a mapping as YAML, atomically."""
    write_text(path, _yaml().safe_dump(dict(content), sort_keys=False))


def parse_settings(pairs: tuple[str, ...]) -> dict[str, Any]:
    """``("epochs=3", "loss=ce")`` as a mapping, values read as YAML scalars.

    >>> parse_settings(("epochs=3", "loss=ce"))
    {'epochs': 3, 'loss': 'ce'}
    """
    yaml = _yaml()
    settings = {}
    for pair in pairs:
        name, sign, value = pair.partition("=")
        if not (name and sign):
            raise ToodError(f"--set: expected NAME=VALUE, found {pair!r}")
        try:
            settings[name] = yaml.safe_load(value)
        except yaml.YAMLError as error:
            raise ToodError(f"--set {pair!r}: the value cannot be read ({str(error).splitlines()[0]})") from error
    return settings


def _yaml() -> Any:
    try:
        import yaml
    except ImportError as error:
        raise MissingDependencyError("PyYAML", "train", "a YAML file or setting") from error
    return yaml

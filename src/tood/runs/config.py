"""Configuration of a run: every choice by name, from a YAML file and the command line. A typo is an error."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias, get_type_hints

from tood.errors import ToodError, UnknownNameError
from tood.evaluation.measure import complete_metrics
from tood.evaluation.metrics_file import detectors_of
from tood.outputs.identity import RunIdentity, short_name, split_method
from tood.settings import Count, Range, checked
from tood.storage.files import contained
from tood.storage.yaml_files import read_yaml
from tood.streams.catalog import CATALOG, family
from tood.streams.described import stream_name

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["RunConfig", "measured_as"]

Track: TypeAlias = Literal["calibration", "memory", "all", "paper"]
Logits: TypeAlias = Literal["both", "corrected", "raw"]
Store: TypeAlias = Literal["all", "metrics"]

PER_CLASS = 10  # calibration samples per class of a stream for which the paper states no number
FROZEN = 2000  # calibration samples of a stream of the paper on the many features of a frozen network
EXACT = ("paper", "released")  # presets that train on all samples, reserve none, and compute in full precision
# Settings of evaluation: changing them needs no new training.
EVALUATION = ("ood", "track", "detectors", "logits", "store", "device", "threads")
# Those of them that change the metrics of a detector.
MEASURING = ("ood", "track", "logits")
# Settings that are part of a run's label in tables.
OPTIONS = (
    *("order", "tasks", "ood", "network", "frozen", "adapter"),
    *("track", "calibration_size", "reserve", "precision"),
)
# Settings always included in the hash of a folder name. Newer settings are included only if set, so that the folder
# names of older runs stay valid.
ALWAYS_NAMED = (
    *("stream", "learner", "preset", "seed", "order", "tasks", "network", "settings"),
    *("calibration_size", "reserve", "detectors", "device", "threads"),
)
LARGEST = 2**32 - 1  # the largest seed that every generator takes
SWEEP = "TOOD_SWEEP"  # in the environment of a cell's process: the process of its sweep


def _is_whole(value: Any) -> bool:
    return type(value) is int and 0 <= value <= LARGEST


def _are_sizes(tasks: Any) -> bool:
    return tasks != [] and all(map(_is_whole, tasks if isinstance(tasks, list) else [tasks]))


def _are_settings(settings: Any) -> bool:
    return isinstance(settings, Mapping) and all(isinstance(name, str) for name in settings)


Whole: TypeAlias = Annotated[int, Range("0 or more and below 2^32", _is_whole)]
OrPreset: TypeAlias = Annotated[int, Range("-1 or more and below 2^32", lambda value: value == -1 or _is_whole(value))]
Order: TypeAlias = Annotated[
    str | int,
    Range("'label', 'seed' or the seed of a permutation", lambda value: value in ("label", "seed") or _is_whole(value)),
]
Sizes: TypeAlias = Annotated[int | list[int], Range("a number of tasks, or sizes such as 50,10,10", _are_sizes)]
LearnerSettings: TypeAlias = Annotated[Mapping[str, Any], Range("a mapping of learner settings", _are_settings)]


@dataclass
class RunConfig:
    """Configuration of one run. Change it with ``dataclasses.replace``, which checks every setting again.

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
        Class order (``"label"``, the seed of a permutation, or ``"seed"`` for the run's own), and the number of
        equal tasks or a list of their sizes; the stream's own by default.
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
    track:
        The data that every detector is fitted on: ``"calibration"`` (a small labelled set of all classes seen, never
        trained on), ``"memory"`` (what the learner replays), ``"all"`` (all training data seen, an upper bound) or
        ``"paper"`` (as its authors: TOOD reads B augmented training samples, the others all training data; the default
        of the presets ``paper`` and ``released``). Of several, which a run measures without training again, tables show
        the first unless told otherwise.
    calibration_size:
        B, over all classes of the stream; 0 for the paper's size (2,000 if frozen), or ten per class if it states none.
    reserve:
        Samples per class that are never trained on; -1 for as many as in the calibration set, or for none with the
        presets that reproduce the paper exactly.
    detectors:
        Names or ``package.module:Class``; empty for all detectors that need only stored outputs.
    logits:
        For a learner that corrects its head (BiC): score the ``"corrected"`` logits, the ``"raw"`` ones or ``"both"``.
    store:
        ``"all"``, or ``"metrics"`` to delete outputs, scores and checkpoints once the run is complete, which needs a
        hundred times less disk space. The metrics, ``learner.json`` and the last network stay.
    device:
        Where to train and evaluate: ``"auto"``, ``"cpu"``, ``"cuda"`` or ``"mps"``.
    precision:
        ``"32-true"``, ``"bf16-mixed"``, ``"16-mixed"`` (GPUs only) or ``"auto"``: bf16-mixed if supported, except
        with the presets ``paper`` and ``released``.
    threads:
        Threads of torch on the CPU. With one, the same seed gives the same bits; more are faster on an idle machine
        and much slower on a busy one.
    """

    stream: str | Mapping[str, Any] = "digits"
    learner: str = "icarl"
    preset: str = ""
    seed: Whole = 0
    order: Order = "label"
    tasks: Sizes = 0
    ood: tuple[str, ...] = ()
    network: str = ""
    frozen: bool = False
    adapter: OrPreset = -1
    settings: LearnerSettings = field(default_factory=dict)
    track: tuple[Track, ...] = ()
    calibration_size: Whole = 0
    reserve: OrPreset = -1
    detectors: tuple[str, ...] = ()
    logits: Logits = "both"
    store: Store = "all"
    device: str = "auto"
    threads: Count = 1
    precision: str = "auto"

    def __post_init__(self) -> None:
        self.preset = self.preset or ("frozen" if self.frozen is True else "cpu")
        for name in ("detectors", "ood", "track"):
            setattr(self, name, _listed(name, getattr(self, name)))
        self.track = self.track or ("paper" if self.preset in EXACT else "calibration",)
        self.tasks = _sizes(self.tasks)
        self.order = int(self.order) if str(self.order).isdecimal() else self.order
        if not stream_name(self.stream):
            raise ToodError("stream: expected a name, found an empty one")
        for name, hint in HINTS.items():
            checked(name, getattr(self, name), hint)
        if "paper" in self.track[1:]:
            raise ToodError(f"track: expected paper as the first, found {','.join(self.track)}")
        self.frozen = self.frozen or self.preset == "frozen"
        if self.adapter >= 0 and not self.frozen:
            raise ToodError("adapter: expected frozen: true (--frozen), found a network that is trained as a whole")

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any], where: str = "config") -> RunConfig:
        """From plain values, such as those of a YAML file; ``where`` names the file in messages.

        Names may be a list or text with commas. An unknown setting is an error that suggests the nearest known one.
        """
        for name in values.keys() - HINTS.keys():
            raise UnknownNameError(f"setting of {where}", str(name), HINTS)
        try:
            if values.get("preset") == "frozen" and values.get("frozen") is False:
                raise ToodError("frozen: expected true with the preset frozen, found false")
            return cls(**values)
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
        if self.track[0] == default.track[0]:  # tables show one track at a time
            options.pop("track", None)
        for name in [name for name, value in options.items() if isinstance(value, (list, tuple))]:
            options[name] = ",".join(map(str, options[name][:1] if name == "track" else options[name]))
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
    def class_order(self) -> str | int:
        """``"label"`` or the seed of a permutation."""
        return self.seed if self.order == "seed" else self.order

    @property
    def name(self) -> str:
        """Name of the run directory: ``STREAM-LEARNER-PRESET-sSEED``, and a short hash of any further settings."""
        return self.identity.folder

    def _tag(self) -> str:
        """Short hash of the settings that the folder name does not show; empty if they are defaults."""
        ignored = {
            "device": "",
            "threads": 0,
            "detectors": [],
            "store": "all",
            "track": [],
        }  # no effect on the networks
        values = self.to_mapping() | ignored
        named = {"stream": stream_name(self.stream), "learner": short_name(self.learner), "seed": self.seed}
        shown = RunConfig(preset=self.preset).to_mapping() | ignored | named
        if values == shown:
            return ""
        kept = {name: value for name, value in values.items() if name in ALWAYS_NAMED or value != shown[name]}
        kept |= {"calibration": "train", "fit": "current"}  # as older versions wrote it
        return hashlib.sha256(json.dumps(kept, sort_keys=True).encode()).hexdigest()[:6]

    def without_finetuning(self) -> RunConfig:
        """The configuration without BER, which trains the same networks."""
        settings = {name: value for name, value in self.settings.items() if not name.startswith("ber_")}
        return dataclasses.replace(self, learner=split_method(self.learner)[0], settings=settings)

    def calibration_per_class(self, classes: int) -> int:
        """Samples per class in the calibration set."""
        entry = CATALOG.get(family(stream_name(self.stream)))
        stated = entry.calibration_size if entry else 0
        size = self.calibration_size or (FROZEN if stated and self.frozen else stated) or PER_CLASS * classes
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


HINTS = get_type_hints(RunConfig, include_extras=True)


def _plain(value: Any) -> Any:
    """A value as YAML gives it back: dictionaries, lists and text in place of other mappings, tuples and paths."""
    if isinstance(value, Mapping):
        return {name: _plain(item) for name, item in value.items()}
    if isinstance(value, (tuple, list)):
        return [_plain(item) for item in value]
    return str(value) if isinstance(value, PurePath) else value


def _sizes(tasks: Any) -> Any:
    """Numbers in a list, or in text with commas, as a list; a single one, or anything else, as it is."""
    if isinstance(tasks, str) and re.fullmatch(r"\d+(,\d+)*", tasks):
        tasks = [int(size) for size in tasks.split(",")]
    sizes = list(tasks) if isinstance(tasks, (list, tuple)) else [tasks]
    return sizes[0] if len(sizes) == 1 else sizes


def _listed(name: str, value: Any) -> tuple[Any, ...]:
    """Names in a list, or in text with commas, as a tuple; None for none."""
    if isinstance(value, str):
        value = [part.strip() for part in value.split(",") if part.strip()]
    if not isinstance(value, (list, tuple, type(None))):
        raise ToodError(f"{name}: expected a list of names, found {value!r}")
    return tuple(value or ())


def stored_settings(folder: Path) -> dict[str, Any]:
    """The settings in ``config.yaml`` of a run, with those it lacks at their defaults; empty if there is none."""
    file = contained(folder, folder / "config.yaml")
    return RunConfig().to_mapping() | read_yaml(file) if file.exists() else {}


def measured_as(config: RunConfig, folder: Path) -> pa.Table | None:
    """The metrics of a run if it has those that a configuration asks for, of any version of the detectors, else None.

    Nothing is imported: a detector ``package.module:Class`` is measured if ``config.yaml`` lists it, which it does only
    once the metrics are written. A run without a ``config.yaml`` counts as made with this configuration.
    """
    table = complete_metrics(folder)
    if table is None:
        return None
    now = config.to_mapping()
    before = stored_settings(folder) or now | {"detectors": []}
    measured = _listed("detectors", before["detectors"])
    if measured and not now["detectors"]:  # now all are asked for
        return None
    found = {*map(str, measured), *detectors_of(table)}
    return table if found >= set(now["detectors"]) and all(before[n] == now[n] for n in MEASURING) else None

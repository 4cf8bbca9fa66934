"""The named streams of ``catalog.json``, their OOD sets, the paths of their files, and the origin of each set."""

from __future__ import annotations

import json
import os
import re
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from tood.errors import ToodError, UnknownNameError
from tood.streams.folders import FolderSource, ImageListSource
from tood.streams.images import Resize, check_size
from tood.streams.packed import PackedSource
from tood.streams.sources import Source, Subset
from tood.streams.stream import Stream, Tasks

__all__ = ["CATALOG", "Entry", "data_root", "family", "locate", "missing", "open_named", "origin", "user_cache"]

LISTS = "benchmark_imglist"  # a folder that has it is OpenOOD's data folder


@dataclass(frozen=True)
class Entry:
    """The sets of a named stream and how their images are read.

    Parameters
    ----------
    train, test:
        Names of its packed sets, or of its image folders.
    tasks:
        The number of equal tasks.
    near, far:
        The packed set or image folder of each OOD set.
    size:
        Pixels per side.
    mean, std:
        Per channel, of pixels in [0, 1].
    resize:
        Pixels that the shorter side of a file's image is scaled to before cropping.
    augmentation:
        Of training images; see :func:`tood.streams.augment.augment`.
    calibration_size:
        The paper's B; 0 if the paper states none.
    foreign:
        OOD sets without their images of the stream's own classes. Class names of both begin with a WordNet id.
    folders:
        True for image folders, False for packed sets.
    lists, list_names, large:
        The folder of the stream's lists in OpenOOD's ``benchmark_imglist``, OpenOOD's names of sets if they differ, and
        the sets whose images are in ``images_largescale``.
    """

    train: str
    test: str
    tasks: int
    near: Mapping[str, str]
    far: Mapping[str, str]
    size: int
    mean: Sequence[float]
    std: Sequence[float]
    resize: int | None = None
    augmentation: str = "crop_flip"
    calibration_size: int = 0
    foreign: Sequence[str] = ()
    folders: bool = False
    lists: str | None = None
    list_names: Mapping[str, str] = field(default_factory=dict)
    large: Sequence[str] = ()

    @property
    def ood(self) -> dict[str, str]:
        """The packed set or image folder of each OOD set, near and far."""
        return {**self.near, **self.far}


DATA: dict[str, Any] = json.loads((files("tood.streams") / "catalog.json").read_text(encoding="utf-8"))
CATALOG: dict[str, Entry | None] = {}  # None: a stream that needs no files
for _name, _values in DATA["streams"].items():
    _like = CATALOG.get((_values or {}).pop("like", ""))
    CATALOG[_name] = (replace(_like, **_values) if _like else Entry(**_values)) if _values else None


def family(name: str) -> str:
    """The data set of a stream, such as ``cifar100`` of ``cifar100-20``; it decides presets and calibration sizes."""
    return name.split("-")[0]


def data_root(root: str | Path | None = None) -> Path:
    """The folder of the packed sets: ``root``, or ``TOOD_DATA``, or ``tood`` in the user's cache folder."""
    chosen = root if root is not None else os.environ.get("TOOD_DATA")
    return user_cache() if chosen in (None, "") else Path(chosen)


def user_cache(root: str | Path | None = None) -> Path:
    """The folder of files that can be rebuilt: ``root``, or ``TOOD_CACHE``, or ``tood`` in the user's cache folder."""
    chosen = root or os.environ.get("TOOD_CACHE")
    return Path(chosen) if chosen else Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tood"


def missing(name: str, root: Path) -> list[str]:
    """The files of a named stream that the folder does not have."""
    entry = CATALOG[name]
    paths = [] if entry is None else locate(entry, root).values()
    return [str(path.relative_to(root)) for path in paths if not path.exists()]


def locate(entry: Entry, root: Path) -> dict[str, Path]:
    """Paths of the training images (``train``), the test images (``test``) and each OOD set, by name.

    A packed set is an ``.npz`` file, an OpenOOD list a ``.txt`` file, anything else an image folder.
    """
    if entry.lists is None or not (root / LISTS).is_dir():
        suffix = "" if entry.folders else ".npz"
        names = {"train": entry.train, "test": entry.test, **entry.ood}
        return {name: root / f"{file}{suffix}" for name, file in names.items()}
    lists = root / LISTS / entry.lists
    paths = {split: lists / f"{split}_{entry.lists}.txt" for split in ("train", "test")}
    return paths | {name: lists / f"test_{entry.list_names.get(name, name)}.txt" for name in entry.ood}


def open_named(
    name: str,
    *,
    root: str | Path | None = None,
    order: int | str = "label",
    tasks: Tasks | None = None,
    size: int | None = None,
    resize: Resize = None,
    ood: Sequence[str] = (),
) -> Stream:
    """A stream of the catalog with files; parameters as for :func:`tood.streams.load`."""
    entry = CATALOG[name]
    assert entry is not None
    size = entry.size if size is None else size
    check_size(size, resize)
    if resize is None and entry.resize is not None:
        resize = round(entry.resize * size / entry.size)
    folder = data_root(root)
    paths = locate(entry, folder)
    chosen = _available_ood(name, entry, folder, ood)

    def read(part: str, **options: Any) -> PackedSource | ImageListSource | FolderSource:
        path = paths[part]
        if path.suffix == ".npz":
            return PackedSource(path, size, resize)
        if path.suffix == ".txt":
            images = folder / ("images_largescale" if part in entry.large else "images_classic")
            return ImageListSource(path, images, size=size, resize=resize)
        return FolderSource(path, size=size, resize=resize, **options)

    train = read("train")
    groups: dict[str, dict[str, Source]] = {"near": {}, "far": {}}
    for ood_name in chosen:
        source = read(ood_name, flat=True)
        group = groups["near" if ood_name in entry.near else "far"]
        group[ood_name] = _without(source, train.classes) if ood_name in entry.foreign else source
    return Stream.from_sources(
        train,
        read("test", classes=train.classes),
        name=name,
        order=order,
        tasks=entry.tasks if tasks is None else tasks,
        ood=groups,
        classes=train.classes,
        augmentation=entry.augmentation,
        mean=entry.mean,
        std=entry.std,
    )


def check_ood_names(name: str, wanted: Sequence[str]) -> None:
    """Raise if a stream of the catalog with files has no OOD set of a name; other streams are not checked."""
    entry = CATALOG.get(name)
    unknown = [ood_name for ood_name in wanted if entry and ood_name not in entry.ood]
    if entry and unknown:
        raise UnknownNameError(f"OOD set of {name}", unknown[0], entry.ood)


def _available_ood(name: str, entry: Entry, root: Path, wanted: Sequence[str]) -> list[str]:
    """The OOD sets to open: those wanted, or all, without those whose files are missing."""
    check_ood_names(name, wanted)
    paths = locate(entry, root)
    chosen = [ood_name for ood_name in entry.ood if not wanted or ood_name in wanted]
    absent = [ood_name for ood_name in chosen if not paths[ood_name].exists()]
    lacking = [n for n in ("train", "test") if not paths[n].exists()] + (absent if absent == chosen else [])
    files = ", ".join(str(paths[n].relative_to(root)) for n in lacking or absent)
    if lacking:
        make = "" if entry.folders else ", or make them (`tood data prepare --help`)"
        raise ToodError(f"{name}: {root} has no {files}; set TOOD_DATA to the folder that has them{make}")
    if absent:
        warnings.warn(f"{name}: OOD sets left out: {', '.join(absent)} ({root} has no {files})", stacklevel=2)
    return [ood_name for ood_name in chosen if ood_name not in absent]


def _without(source: PackedSource | ImageListSource | FolderSource, classes: tuple[str, ...]) -> Subset:
    """A source without the classes of these names; all names start with a WordNet id."""
    own = {name[:9] for name in classes}
    other = np.array([name[:9] not in own for name in source.classes])
    return Subset(source, np.flatnonzero(other[source.labels]))


class Origin(NamedTuple):
    """Publisher's page, terms and size of one image set."""

    source: str = "not known to tood"
    licence: str = "not known to tood; ask its publisher"
    size: str = "not known to tood"  # of the publisher's set; a packed set may be a part of it


def origin(name: str) -> Origin:
    """The origin of a set by its file name.

    >>> origin("dtd64-test.npz").licence
    'for research purposes'
    >>> origin("mine-train.npz").source
    'not known to tood'
    """
    stem = re.split(r"[-./]", name)[0]
    known = DATA["origins"]
    return Origin(*(known.get(stem) or known.get(stem.removesuffix("64")) or ()))

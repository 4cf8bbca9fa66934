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
from typing import Any, TypeAlias

import numpy as np

from tood.errors import ToodError, UnknownNameError
from tood.streams.images import FolderSource, ImageListSource, Resize, check_size, fit_all
from tood.streams.packed import PackedSource
from tood.streams.published import read_published
from tood.streams.sources import ArraySource, Source, Subset, user_cache
from tood.streams.stream import Stream, Tasks

__all__ = ["CATALOG", "Entry", "data_root", "family", "locate", "open_named", "origin", "places"]

Named: TypeAlias = ArraySource | PackedSource | ImageListSource | FolderSource  # sources with names of classes
LISTS = "benchmark_imglist"  # OpenOOD's data folder has it


@dataclass(frozen=True)
class Entry:
    """The sets of a named stream and how their images are read.

    Parameters
    ----------
    train, test:
        Names of its sets (see :func:`places`).
    tasks:
        The number of equal tasks.
    near, far:
        The set of each OOD set, by the name in tables.
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
    lists: str | None = None
    list_names: Mapping[str, str] = field(default_factory=dict)
    large: Sequence[str] = ()

    @property
    def ood(self) -> dict[str, str]:
        """The set of each OOD set, near and far."""
        return {**self.near, **self.far}

    @property
    def sets(self) -> dict[str, str]:
        """The names of all sets by their part: ``train``, ``test``, and the OOD sets."""
        return {"train": self.train, "test": self.test, **self.ood}


DATA: dict[str, Any] = json.loads((files("tood.streams") / "catalog.json").read_text(encoding="utf-8"))
CATALOG: dict[str, Entry] = {}
for _name, _values in DATA["streams"].items():
    _like = CATALOG.get(_values.pop("like", ""))
    CATALOG[_name] = replace(_like, **_values) if _like else Entry(**_values)


def family(name: str) -> str:
    """The data set of a stream, such as ``cifar100`` of ``cifar100-20``; it decides presets and calibration sizes."""
    return name.split("-")[0]


def data_root(root: str | Path | None = None) -> Path:
    """The folder of the image sets: ``root``, or ``TOOD_DATA``, or ``tood`` in the user's cache folder."""
    chosen = root if root is not None else os.environ.get("TOOD_DATA")
    return user_cache() if chosen in (None, "") else Path(chosen)


def places(entry: Entry, part: str) -> list[str]:
    """Where a set (``train``, ``test`` or an OOD set) may be in the data folder; the first place that exists counts.

    A packed set (``.npz``), the publisher's file or folder, OpenOOD's list (``.txt``), or an image folder.
    """
    name = entry.sets[part]
    listed = f"{part}_{entry.lists}" if part in ("train", "test") else f"test_{entry.list_names.get(part, part)}"
    lists = [f"{LISTS}/{entry.lists}/{listed}.txt"] if entry.lists else []
    return [f"{name}.npz", *DATA["places"].get(name, []), *lists, name]


def locate(entry: Entry, root: Path) -> dict[str, Path | None]:
    """The path of each set of a stream; None for one that is missing."""
    return {
        part: next((root / place for place in places(entry, part) if (root / place).exists()), None)
        for part in entry.sets
    }


def open_named(
    name: str,
    *,
    root: str | Path | None = None,
    order: int | str = "label",
    tasks: Tasks | None = None,
    size: int | None = None,
    resize: Resize = None,
) -> Stream:
    """A stream of the catalog with files; parameters as for :func:`tood.streams.load`."""
    entry = CATALOG[name]
    size = entry.size if size is None else size
    check_size(size, resize)
    if resize is None and entry.resize is not None:
        resize = round(entry.resize * size / entry.size)
    folder = data_root(root)
    paths = _available(name, entry, folder)

    def read(part: str, **options: Any) -> Named:
        path = paths[part]
        if path.is_dir():
            return FolderSource(path, size=size, resize=resize, **options)
        if path.suffix == ".npz":
            return PackedSource(path, size, resize)
        if path.suffix == ".txt":
            images = folder / ("images_largescale" if part in entry.large else "images_classic")
            return ImageListSource(path, images, size=size, resize=resize)
        published, labels, classes = read_published(path)
        return ArraySource(fit_all(published, size, resize), labels, classes)

    train = read("train")
    groups: dict[str, dict[str, Source]] = {"near": {}, "far": {}}
    for ood_name in [part for part in paths if part in entry.ood]:
        source = read(ood_name, flat=ood_name not in entry.foreign)
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
    known = CATALOG[name].ood if name in CATALOG else wanted
    for ood_name in set(wanted) - set(known):
        raise UnknownNameError(f"OOD set of {name}", ood_name, known)


def _available(name: str, entry: Entry, root: Path) -> dict[str, Path]:
    """The paths of the training and test images, and of the OOD sets that are present."""
    paths = locate(entry, root)
    absent = [part for part, path in paths.items() if path is None]
    files = ", ".join(entry.sets[part] for part in absent)
    if {"train", "test"} & {*absent} or {*entry.ood} <= {*absent}:
        raise ToodError(f"{name}: {root} has no {files}; `tood data check` shows where to get them; or set TOOD_DATA")
    if absent:
        warnings.warn(f"{name}: OOD sets left out: {', '.join(absent)} ({root} has no {files})", stacklevel=2)
    return {part: path for part, path in paths.items() if path is not None}


def _without(source: Named, classes: tuple[str, ...]) -> Subset:
    """A source without the classes of these names; all names start with a WordNet id."""
    own = {name[:9] for name in classes}
    other = np.array([name[:9] not in own for name in source.classes])
    return Subset(source, np.flatnonzero(other[source.labels]))


def origin(name: str) -> dict[str, str]:
    """Publisher's page, terms and size of a set by its name. The size is that of the publisher's whole set.

    >>> origin("dtd64-test")["licence"]
    'for research purposes'
    """
    stem = re.split(r"[-/]", name)[0]
    known = DATA["origins"]
    return dict(zip(("source", "licence", "size"), known.get(stem) or known[stem.removesuffix("64")], strict=True))

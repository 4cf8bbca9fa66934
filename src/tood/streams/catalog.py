"""The named streams, their OOD sets, and the paths of their files."""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from tood.errors import ToodError, UnknownNameError
from tood.streams.arrival import Tasks
from tood.streams.digits import digits
from tood.streams.folders import FolderSource, ImageListSource
from tood.streams.images import Resize, check_size
from tood.streams.packed import PackedSource
from tood.streams.sources import Source, Subset
from tood.streams.stream import Stream

__all__ = [
    "CATALOG",
    "Entry",
    "check_ood_names",
    "data_root",
    "family",
    "locate",
    "missing",
    "open_named",
    "user_cache",
]


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
    lists:
        The folder of the stream's lists in OpenOOD's ``benchmark_imglist``.
    folders:
        True for image folders, False for packed sets.
    """

    train: str
    test: str
    tasks: int
    near: Mapping[str, str]
    far: Mapping[str, str]
    size: int
    mean: tuple[float, float, float]
    std: tuple[float, float, float]
    resize: int | None = None
    lists: str | None = None
    folders: bool = False


CIFAR10 = Entry(
    train="cifar10-train",
    test="cifar10-test",
    tasks=5,
    near={"cifar100": "cifar100-test", "tinyimagenet": "tinyimagenet-test"},
    far={"mnist": "mnist-test", "svhn": "svhn-test", "textures": "dtd-test", "places": "places-test"},
    size=32,
    mean=(0.4914, 0.4822, 0.4465),
    std=(0.2470, 0.2435, 0.2616),
    lists="cifar10",
)
CIFAR100 = replace(
    CIFAR10,
    train="cifar100-train",
    test="cifar100-test",
    tasks=10,
    near={"cifar10": "cifar10-test", "tinyimagenet": "tinyimagenet-test"},
    mean=(0.5071, 0.4867, 0.4408),
    std=(0.2675, 0.2565, 0.2761),
    lists="cifar100",
)
# Near-OOD: images of the 800 ImageNet-1K classes that Tiny ImageNet does not have (`_without` drops its own 200).
# Far-OOD: sets that exist at 64 pixels, so that nothing is scaled up.
TINYIMAGENET = Entry(
    train="tinyimagenet-train",
    test="tinyimagenet-test",
    tasks=20,
    near={"imagenet800": "imagenet64-sample"},
    far={"textures": "dtd64-test", "places": "places64-test"},
    size=64,
    mean=(0.4802, 0.4481, 0.3975),
    std=(0.2770, 0.2691, 0.2821),
)
IMAGENET1K = Entry(
    train="imagenet1k/train",
    test="imagenet1k/val",
    tasks=100,
    near={"ssb_hard": "ssb_hard", "ninco": "ninco"},
    far={"inaturalist": "inaturalist", "textures": "textures", "openimage_o": "openimage_o"},
    size=224,
    mean=(0.485, 0.456, 0.406),
    std=(0.229, 0.224, 0.225),
    resize=256,
    lists="imagenet",
    folders=True,
)
CATALOG: dict[str, Entry | None] = {
    "digits": None,  # needs no files
    "cifar10": CIFAR10,
    "cifar100": CIFAR100,
    "cifar100-5": replace(CIFAR100, tasks=5),
    "cifar100-20": replace(CIFAR100, tasks=20),
    "cifar100-50": replace(CIFAR100, tasks=50),
    "tinyimagenet": TINYIMAGENET,
    "tinyimagenet-100": replace(TINYIMAGENET, tasks=100),
    "imagenet1k": IMAGENET1K,
}
LISTS = "benchmark_imglist"  # a folder that has it is OpenOOD's data folder
LIST_NAMES = {"tinyimagenet": "tin", "places": "places365", "textures": "texture"}  # OpenOOD's names, if not ours


def family(name: str) -> str:
    """The data set of a stream, such as ``cifar100`` of ``cifar100-20``; it decides presets and calibration sizes."""
    return name.split("-")[0]


def data_root(root: str | Path | None = None) -> Path:
    """The folder of the packed sets: ``root``, or ``TOOD_DATA``, or ``tood`` in the user's cache folder."""
    if root is not None:
        return Path(root)
    return Path(os.environ["TOOD_DATA"]) if os.environ.get("TOOD_DATA") else user_cache()


def user_cache(root: str | Path | None = None) -> Path:
    """The folder of files that can be rebuilt: ``root``, or ``TOOD_CACHE``, or ``tood`` in the user's cache folder."""
    chosen = root or os.environ.get("TOOD_CACHE")
    return Path(chosen) if chosen else Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tood"


def missing(name: str, root: Path) -> list[str]:
    """The files of a named stream that the folder does not have."""
    entry = _entry(name)
    paths = [] if entry is None else locate(entry, root).values()
    return [str(path.relative_to(root)) for path in paths if not path.exists()]


def _entry(name: str) -> Entry | None:
    if name not in CATALOG:
        raise UnknownNameError("stream", name, CATALOG)
    return CATALOG[name]


def locate(entry: Entry, root: Path) -> dict[str, Path]:
    """Paths of the training images (``train``), the test images (``test``) and each OOD set, by name.

    A packed set is an ``.npz`` file, an OpenOOD list a ``.txt`` file, anything else an image folder.
    """
    sets = {**entry.near, **entry.far}
    if entry.lists is None or not (root / LISTS).is_dir():
        suffix = "" if entry.folders else ".npz"
        names = {"train": entry.train, "test": entry.test, **sets}
        return {name: root / f"{file}{suffix}" for name, file in names.items()}
    lists = root / LISTS / entry.lists
    own = {} if entry.folders else LIST_NAMES  # for ImageNet its names are ours
    paths = {split: lists / f"{split}_{entry.lists}.txt" for split in ("train", "test")}
    return paths | {name: lists / f"test_{own.get(name, name)}.txt" for name in sets}


def open_named(
    name: str,
    *,
    root: str | Path | None = None,
    order: int | str = "label",
    tasks: Tasks | None = None,
    size: int | None = None,
    resize: Resize = None,
    ood_names: Sequence[str] = (),
) -> Stream:
    """A stream of the catalog; parameters as for :func:`tood.streams.load`, whose ``ood`` is ``ood_names`` here."""
    entry = _entry(name)
    options: dict[str, Any] = {"name": name, "order": order}
    if entry is None:
        if size not in (None, 8) or resize is not None:
            raise ToodError(f"size, resize: digits are 8 pixels per side, found {size or resize}")
        train, test, sets = digits()
        options |= {"augmentation": "shift", "tasks": 4 if tasks is None else tasks}
        return Stream.from_sources(train, test, ood=sets, **options).with_ood(ood_names)
    options |= {"augmentation": "crop_flip", "tasks": entry.tasks if tasks is None else tasks}
    size = entry.size if size is None else size
    check_size(size, resize)
    if resize is None and entry.resize is not None:
        resize = round(entry.resize * size / entry.size)
    folder = data_root(root)
    chosen = _available_ood(name, entry, folder, ood_names)
    paths = locate(entry, folder)
    train_set = _read(paths["train"], size, resize)
    test_set = _read(paths["test"], size, resize, classes=train_set.classes)
    groups: dict[str, dict[str, Source]] = {"near": {}, "far": {}}
    for ood_name in chosen:
        images = _read(paths[ood_name], size, resize, flat=True)
        source = _without(images, train_set.classes) if ood_name == "imagenet800" else images
        groups["near" if ood_name in entry.near else "far"][ood_name] = source
    options |= {"classes": train_set.classes, "mean": entry.mean, "std": entry.std}
    return Stream.from_sources(train_set, test_set, ood=groups, **options)


def check_ood_names(name: str, wanted: Sequence[str]) -> None:
    """Raise if a stream of the catalog with files has no OOD set of a name; other streams are not checked."""
    entry = CATALOG.get(name)
    if entry is None:
        return
    known = [*entry.near, *entry.far]
    for ood_name in wanted:
        if ood_name not in known:
            raise UnknownNameError(f"OOD set of {name}", ood_name, known)


def _available_ood(name: str, entry: Entry, root: Path, wanted: Sequence[str]) -> list[str]:
    """The OOD sets to open: those wanted, or all, without those whose files are missing."""
    check_ood_names(name, wanted)
    known = [*entry.near, *entry.far]
    paths = locate(entry, root)
    chosen = [ood_name for ood_name in known if not wanted or ood_name in wanted]
    absent = [ood_name for ood_name in chosen if not paths[ood_name].exists()]
    lacking = [n for n in ("train", "test") if not paths[n].exists()] + (absent if absent == chosen else [])
    if lacking:
        make = "" if entry.folders else ", or make them (`tood data prepare --help`)"
        files = ", ".join(str(paths[n].relative_to(root)) for n in lacking)
        raise ToodError(f"{name}: {root} has no {files}; set TOOD_DATA to the folder that has them{make}")
    if absent:
        files = ", ".join(str(paths[n].relative_to(root)) for n in absent)
        warnings.warn(f"{name}: OOD sets left out: {', '.join(absent)} ({root} has no {files})", stacklevel=2)
    return [ood_name for ood_name in chosen if ood_name not in absent]


def _read(
    path: Path, size: int, resize: Resize, classes: tuple[str, ...] | None = None, flat: bool = False
) -> PackedSource | ImageListSource | FolderSource:
    if path.suffix == ".npz":
        return PackedSource(path, size, resize)
    if path.suffix == ".txt":
        # OpenOOD keeps textures with its small images even when ImageNet is tested against them.
        large = path.parent.name == "imagenet" and path.name != "test_textures.txt"
        images = path.parents[2] / ("images_largescale" if large else "images_classic")
        return ImageListSource(path, images, size=size, resize=resize)
    return FolderSource(path, size=size, resize=resize, classes=classes, flat=flat)


def _without(source: PackedSource | ImageListSource | FolderSource, classes: tuple[str, ...]) -> Subset:
    """An ImageNet set without the classes of these names; all names start with a WordNet id."""
    own = {name[:9] for name in classes}
    other = np.array([name[:9] not in own for name in source.classes])
    return Subset(source, np.flatnonzero(other[source.labels]))

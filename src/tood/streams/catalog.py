"""The named streams, their OOD sets, and where their files are."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from tood.errors import ToodError, UnknownNameError
from tood.streams.arrival import Tasks
from tood.streams.digits import digits
from tood.streams.folders import FolderSource, ImageListSource
from tood.streams.packed import PackedSource
from tood.streams.sources import Source, Subset
from tood.streams.stream import Stream

__all__ = ["CATALOG", "Entry", "data_root", "load", "locate", "missing", "names", "user_cache"]


@dataclass(frozen=True)
class Entry:
    """What a named stream is made of.

    Parameters
    ----------
    train, test:
        Names of its packed sets, or of its image folders.
    tasks:
        The number of equal tasks.
    near, far:
        The packed set or image folder of each OOD set.
    size:
        Pixels a side.
    mean, std:
        Per channel, of pixels in [0, 1].
    resize:
        What the shorter side of a file's image is scaled to before cropping.
    lists:
        The folder of the stream's lists in OpenOOD's ``benchmark_imglist``.
    folders:
        Image folders rather than packed sets?
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


CIFAR_FAR = {"mnist": "mnist-test", "svhn": "svhn-test", "textures": "dtd-test", "places": "places-test"}
CIFAR10 = Entry(
    train="cifar10-train",
    test="cifar10-test",
    tasks=5,
    near={"cifar100": "cifar100-test", "tinyimagenet": "tinyimagenet-test"},
    far=CIFAR_FAR,
    size=32,
    mean=(0.4914, 0.4822, 0.4465),
    std=(0.2470, 0.2435, 0.2616),
    lists="cifar10",
)


def _cifar100(tasks: int) -> Entry:
    return Entry(
        train="cifar100-train",
        test="cifar100-test",
        tasks=tasks,
        near={"cifar10": "cifar10-test", "tinyimagenet": "tinyimagenet-test"},
        far=CIFAR_FAR,
        size=32,
        mean=(0.5071, 0.4867, 0.4408),
        std=(0.2675, 0.2565, 0.2761),
        lists="cifar100",
    )


# Near-OOD of Tiny ImageNet are images of the 800 ImageNet-1K classes that it does not have; its own 200 are left out
# of the file by their WordNet ids. Far-OOD are sets that exist at 64 pixels, so that nothing is scaled up.
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
    "cifar100": _cifar100(10),
    "cifar100-5": _cifar100(5),
    "cifar100-20": _cifar100(20),
    "cifar100-50": _cifar100(50),
    "tinyimagenet": TINYIMAGENET,
    "tinyimagenet-100": replace(TINYIMAGENET, tasks=100),
    "imagenet1k": IMAGENET1K,
}
LISTS = "benchmark_imglist"  # what tells OpenOOD's data folder
LIST_NAMES = {"tinyimagenet": "tin", "places": "places365", "textures": "texture"}  # where OpenOOD's are not ours


def names() -> list[str]:
    """The named streams."""
    return sorted(CATALOG)


def data_root(root: str | Path | None = None) -> Path:
    """The folder of the packed sets: ``root``, or ``TOOD_DATA``, or ``tood`` in the user's cache folder."""
    if root is not None:
        return Path(root)
    return Path(os.environ["TOOD_DATA"]) if os.environ.get("TOOD_DATA") else user_cache()


def user_cache(root: str | Path | None = None) -> Path:
    """The folder of what can be made again: ``root``, or ``TOOD_CACHE``, or ``tood`` in the user's cache folder."""
    chosen = root or os.environ.get("TOOD_CACHE")
    return Path(chosen) if chosen else Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tood"


def missing(name: str, root: Path) -> list[str]:
    """What a named stream needs and the folder does not have."""
    entry = _entry(name)
    paths = [] if entry is None else locate(entry, root).values()
    return [str(path.relative_to(root)) for path in paths if not path.exists()]


def _entry(name: str) -> Entry | None:
    if name not in CATALOG:
        raise UnknownNameError("stream", name, CATALOG)
    return CATALOG[name]


def locate(entry: Entry, root: Path) -> dict[str, Path]:
    """Where the training (``train``) and test images (``test``) and each OOD set are to be, by its name.

    A packed set is an ``.npz`` file, an OpenOOD list a ``.txt`` file, and else it is an image folder.
    """
    sets = {**entry.near, **entry.far}
    if entry.lists is None or not (root / LISTS).is_dir():
        suffix = "" if entry.folders else ".npz"
        names = {"train": entry.train, "test": entry.test, **sets}
        return {name: root / f"{file}{suffix}" for name, file in names.items()}
    lists = root / LISTS / entry.lists
    own = {} if entry.folders else LIST_NAMES  # for ImageNet its names are the same as ours
    found = {split: lists / f"{split}_{entry.lists}.txt" for split in ("train", "test")}
    return found | {name: lists / f"test_{own.get(name, name)}.txt" for name in sets}


def load(
    name: str = "digits",
    *,
    root: str | Path | None = None,
    order: int | str = "label",
    tasks: Tasks | None = None,
    reserve: int = 0,
    seed: int = 0,
    size: int | None = None,
) -> Stream:
    """A stream by name. Images are read when they are first used.

    Parameters
    ----------
    name:
        One of :func:`names`.
    root:
        The folder of the packed sets (by default see :func:`data_root`), or that of OpenOOD's data: one with
        ``benchmark_imglist`` in it is read by its lists.
    order:
        ``"label"``, as in the paper, or the seed of a permutation of the classes.
    tasks:
        Their number, their sizes or their class ids, other than the stream's own.
    reserve, seed:
        Samples a class set aside and never trained on, and the seed of that choice.
    size:
        Pixels a side, other than the stream's own.

    Examples
    --------
    >>> stream = load("digits")
    >>> len(stream), stream.sizes, [(s.name, s.group) for s in stream.ood]
    (4, (2, 2, 2, 2), [('eight_nine', 'near'), ('photographs', 'far'), ('noise', 'far')])
    """
    entry = _entry(name)
    options: dict[str, Any] = {"name": name, "order": order, "reserve": reserve, "seed": seed}
    if entry is None:
        if size not in (None, 8):
            raise ToodError(f"size: digits are 8 pixels a side, found {size}")
        train, test, ood = digits()
        options |= {"augmentation": "shift", "tasks": 4 if tasks is None else tasks}
        return Stream.from_sources(train, test, ood=ood, **options)
    options |= {"augmentation": "crop_flip", "tasks": entry.tasks if tasks is None else tasks}
    return _open(name, entry, data_root(root), entry.size if size is None else size, options)


def _open(name: str, entry: Entry, root: Path, size: int, options: dict[str, Any]) -> Stream:
    absent = missing(name, root)
    if absent:
        make = "" if entry.folders else ", or make them (`tood data prepare --help`)"
        raise ToodError(f"{name}: {root} has no {', '.join(absent)}; set TOOD_DATA to the folder that has them{make}")
    resize = None if entry.resize is None else round(entry.resize * size / entry.size)
    paths = locate(entry, root)
    train = _read(paths["train"], size, resize)
    test = _read(paths["test"], size, resize, classes=train.classes)
    sets = {n: _read(paths[n], size, resize, flat=True) for n in (*entry.near, *entry.far)}
    ood: dict[str, dict[str, Source]] = {
        "near": {n: sets[n] for n in entry.near},
        "far": {n: sets[n] for n in entry.far},
    }
    if "imagenet800" in sets:
        ood["near"]["imagenet800"] = _without(sets["imagenet800"], train.classes)
    return Stream.from_sources(train, test, ood=ood, classes=train.classes, mean=entry.mean, std=entry.std, **options)


def _read(
    path: Path, size: int, resize: int | None, classes: tuple[str, ...] | None = None, flat: bool = False
) -> PackedSource | ImageListSource | FolderSource:
    if path.suffix == ".npz":
        return PackedSource(path, size)
    if path.suffix == ".txt":
        # OpenOOD keeps textures with its small images even where ImageNet is tested against them.
        large = path.parent.name == "imagenet" and path.name != "test_textures.txt"
        images = path.parents[2] / ("images_largescale" if large else "images_classic")
        return ImageListSource(path, images, size=size, resize=resize)
    return FolderSource(path, size=size, resize=resize, classes=classes, flat=flat)


def _without(source: PackedSource | ImageListSource | FolderSource, classes: tuple[str, ...]) -> Subset:
    """What is left of an ImageNet set without the classes of these names; all names start with a WordNet id."""
    own = {name[:9] for name in classes}
    other = np.array([name[:9] not in own for name in source.classes])
    return Subset(source, np.flatnonzero(other[source.labels]))

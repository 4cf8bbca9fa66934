"""Streams described by a mapping: image folders, an ``.npz`` file, Hugging Face data sets."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from tood.errors import ToodError, UnknownNameError
from tood.storage.npz import npz_names, read_npz
from tood.streams.bundled import standardised
from tood.streams.catalog import data_root
from tood.streams.datasets import from_huggingface, from_texts
from tood.streams.features import FeatureSource
from tood.streams.images import FolderSource, Resize
from tood.streams.packed import PackedSource
from tood.streams.sources import ArraySource, Source
from tood.streams.stream import OODSet, Stream, Tasks

__all__ = ["OPENERS", "check_mapping", "check_ood", "stream_name", "with_more"]

ARRAYS = ("train", "train_labels", "test", "test_labels")
OOD = ("ood_near_", "ood_far_")
Place = tuple[str, str, Any]  # group, name and place of an OOD set


def check_mapping(described: Mapping[str, Any]) -> tuple[str, Any, dict[str, Any]]:
    """The kind, its value and the other options of a mapping that describes a stream."""
    known = (*OPENERS, "stream")
    kinds = [key for key in known if key in described]
    if len(kinds) != 1:
        raise ToodError(f"stream: expected a mapping with one of {', '.join(known)}, found {dict(described)}")
    options = {key: value for key, value in described.items() if key not in (kinds[0], "name")}
    return kinds[0], described[kinds[0]], options


def stream_name(stream: str | Mapping[str, Any]) -> str:
    """The name of a stream in tables and folder names.

    >>> stream_name("cifar10"), stream_name("mine.data:birds"), stream_name({"npz": "data/birds.npz", "tasks": 5})
    ('cifar10', 'birds', 'birds')
    """
    if isinstance(stream, Mapping):
        kind, value, _ = check_mapping(stream)
        if "name" in stream:
            return str(stream["name"])
        return stream_name(str(value)) if kind == "stream" else Path(str(value)).resolve().stem
    if not isinstance(stream, str) or not stream:
        raise ToodError(f"stream: expected a name, 'package.module:factory' or a mapping, found {stream!r}")
    return stream.rpartition(":")[2]


def open_npz(
    npz: str | Path,
    *,
    tasks: Tasks = 5,
    order: int | str = "label",
    augmentation: str = "none",
    standardise: bool = True,
) -> Stream:
    """A stream of arrays in one file: ``train``, ``train_labels``, ``test``, ``test_labels``, ``ood_near_NAME``, …

    Images are uint8 ``[N, H, W, C]``, vectors are real ``[N, D]``; ``classes`` (optional) has the class names. With
    ``standardise``, vectors get mean 0 and variance 1 over the training samples of the first task.
    """
    path = Path(npz)
    names = npz_names(path)
    if not set(ARRAYS) <= set(names):
        raise ToodError(f"{path}: expected the arrays {', '.join(ARRAYS)}, found {', '.join(names) or 'none'}")
    for name in names:
        if name not in (*ARRAYS, "classes") and not name.startswith(OOD):
            raise UnknownNameError(f"array of {path}", name, [*ARRAYS, "classes", *(f"{prefix}NAME" for prefix in OOD)])
    arrays, _ = read_npz(path)
    sets: dict[str, dict[str, Any]] = {"near": {}, "far": {}}
    for name in (name for name in arrays if name.startswith(OOD)):
        _, group, ood_name = name.split("_", 2)
        sets[group][ood_name] = arrays[name]
    classes = [str(name) for name in arrays["classes"]] if "classes" in arrays else None
    options: dict[str, Any] = {"tasks": tasks, "order": order, "augmentation": augmentation, "classes": classes}
    try:
        stream = Stream.from_arrays(*(arrays[name] for name in ARRAYS), ood=sets, **options)
    except ToodError as error:
        raise ToodError(f"{path}: {error}") from error
    return standardised(stream) if standardise and len(stream.train.shape) == 1 else stream


def open_huggingface(
    huggingface: str,
    *,
    size: int | None = None,
    tasks: Tasks = 5,
    order: int | str = "label",
    resize: Resize = None,
    augmentation: str = "crop_flip",
    train: str = "train",
    test: str = "test",
    image: str = "image",
    label: str = "label",
    text: str = "",
    encoder: str = "",
    revision: str | None = None,
) -> Stream:
    """A stream of a Hugging Face data set: names of its splits and columns, and its revision.

    With ``text``, a column of texts, samples are embeddings by ``encoder``, a folder or name of sentence-transformers,
    standardised over the training samples of the first task.
    """
    sources: list[Any]
    if text:
        sources = [from_texts(huggingface, split, text, label, encoder, revision) for split in (train, test)]
    else:
        read = partial(from_huggingface, huggingface, size=size, resize=resize, revision=revision)
        sources = [read(split, image, label) for split in (train, test)]
    classes, augmentation = sources[0].classes, "none" if text else augmentation
    stream = Stream.from_sources(*sources, tasks=tasks, order=order, augmentation=augmentation, classes=classes)
    return standardised(stream) if text else stream


OPENERS: dict[str, Callable[..., Stream]] = {
    "folder": Stream.from_folder,
    "npz": open_npz,
    "huggingface": open_huggingface,
}


def with_more(stream: Stream, places: list[Place], resize: Resize, root: str | Path | None) -> Stream:
    """A stream with further OOD sets, the result of :func:`check_ood`; packed sets are those of ``root``."""
    size = stream.train.shape[0] if len(stream.train.shape) == 3 else None
    resize = resize or getattr(stream.train, "resize", None)
    added = []
    for group, name, place in places:
        source = _ood_source(place, f"ood {name}", size, resize, data_root(root))
        if isinstance(stream.train, FeatureSource):
            source = stream.train.standardise(source)
        added.append(OODSet(name, group, source))  # type: ignore[arg-type]
    return dataclasses.replace(stream, ood=(*stream.ood, *added)) if added else stream


def check_ood(ood: Mapping[str, Mapping[str, Any]] | None) -> list[Place]:
    """Group, name and place of each OOD set of a mapping ``{near: {NAME: PLACE}, far: {...}}``."""
    groups = {} if ood is None else ood
    if not isinstance(groups, Mapping) or not all(
        group in ("near", "far") and isinstance(sets, Mapping) for group, sets in groups.items()
    ):
        raise ToodError(f"ood: expected {{near: {{NAME: PLACE}}, far: {{NAME: PLACE}}}}, found {ood!r}")
    return [(group, str(name), place) for group, sets in groups.items() for name, place in sets.items()]


def _ood_source(place: Any, name: str, size: int | None, resize: Resize, root: Path) -> Source:
    """An image folder, an ``.npz`` file with ``images``, a packed set by name, or ``{huggingface: NAME, split: …}``."""
    if isinstance(place, Mapping):
        options = {"huggingface": None, "split": "test", "image": "image", "revision": None, "text": "", "encoder": ""}
        for key in place:
            if key not in options:
                raise UnknownNameError(f"option of {name}", key, options)
        if "huggingface" not in place:
            raise ToodError(f"{name}: expected a path or {{huggingface: NAME}}, found {dict(place)}")
        dataset, split, image, revision, text, encoder = (options | dict(place)).values()
        if text:
            return from_texts(str(dataset), split, text, None, encoder, revision)
        return from_huggingface(str(dataset), split, image, None, size=size, resize=resize, revision=revision)
    path = Path(str(place))
    if path.is_dir():
        if size is None:
            raise ToodError(f"{name}: {path}: images cannot be OOD of a stream of vectors")
        return FolderSource(path, size=size, resize=resize, flat=True)
    if not path.exists() and (root / f"{place}.npz").is_file():
        return PackedSource(root / f"{place}.npz", size, resize)
    arrays, _ = read_npz(path, ("images", "samples"))
    if not arrays:
        raise ToodError(f"{path}: expected an array images or samples, found neither")
    return ArraySource(next(iter(arrays.values())))

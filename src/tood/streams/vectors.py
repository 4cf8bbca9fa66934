"""Streams of vectors: CLINC150 as sentence embeddings; CIFAR-10 as components of frozen features, in the package."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np

from tood.errors import ToodError
from tood.storage.npz import read_npz
from tood.streams.catalog import data_root
from tood.streams.features import FeatureSource, standardisation
from tood.streams.sources import Source
from tood.streams.stream import OODSet, Stream, Tasks

__all__ = ["open_clinc150", "open_components", "standardised"]

CLINC150 = "clinc150-minilm.npz"
CLINC150_SHA256 = "150dff2f714088c5695e3e11ca2c8e7e570be593aa9420556ea12b040d1c089d"


def standardised(stream: Stream) -> Stream:
    """A stream of vectors with mean 0 and variance 1 per dimension over the training samples of its first task."""
    shift, scale = standardisation(stream.train.take(stream.train_rows(0)))

    def of(source: Source) -> FeatureSource:
        return FeatureSource(source.take(np.arange(len(source))), source.labels, shift, scale)

    ood = tuple(OODSet(s.name, s.group, of(s.source)) for s in stream.ood)
    return dataclasses.replace(stream, train=of(stream.train), test=of(stream.test), ood=ood)


def open_clinc150(
    *, root: str | Path | None = None, order: int | str = "label", tasks: Tasks = 15, standardise: bool = True
) -> Stream:
    """CLINC150 (Larson et al. 2019): 150 intents as MiniLM embeddings; near-OOD are its out-of-scope queries."""
    path = data_root(root) / CLINC150
    if not path.is_file():
        raise ToodError(f"clinc150: {path.parent} has no {path.name}; set TOOD_DATA to the folder that has it")
    arrays, digest = read_npz(path)
    if digest != CLINC150_SHA256:
        raise ToodError(f"{path}: expected SHA-256 {CLINC150_SHA256}, found {digest}; restore it from a copy")
    parts = [arrays[f"{split}_{kind}"] for split in ("train", "test") for kind in ("minilm", "labels")]
    ood = {"near": {"out_of_scope": arrays["oos_test_minilm"]}}
    classes = [str(name) for name in arrays["classes"]]
    stream = Stream.from_arrays(*parts, tasks=tasks, ood=ood, order=order, classes=classes)
    return standardised(stream) if standardise else stream


def open_components(*, order: int | str = "label", tasks: Tasks = 5) -> Stream:
    """CIFAR-10 in five tasks, with CIFAR-100 as near and Textures as far OOD set.

    Vectors ``[96]``: principal components of EfficientNet-Lite0's features, in 8 bits
    (``benchmarks/embedded_data.py``).
    """
    with np.load(Path(__file__).with_name("cifar10_components.npz")) as file:
        vectors = {name: file[name] * file["unit"] for name in ("train", "test", "near", "far")}
        train, test = (file[f"{name}_labels"].astype(np.int64) for name in ("train", "test"))
    ood = {"near": {"cifar100": vectors["near"]}, "far": {"textures": vectors["far"]}}
    return Stream.from_arrays(
        vectors["train"], train, vectors["test"], test, tasks=tasks, ood=ood, order=order, name="cifar10_components"
    )

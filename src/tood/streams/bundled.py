"""Streams without images to fetch: digits, CLINC150 as sentence embeddings, CIFAR-10 as components of features."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tood.errors import MissingDependencyError, ToodError
from tood.storage.npz import read_npz
from tood.streams.catalog import data_root
from tood.streams.features import FeatureSource, standardisation
from tood.streams.sources import ArraySource
from tood.streams.stream import OODSet, Stream, Tasks

__all__ = ["digits", "open_clinc150", "open_components", "open_digits", "standardised"]

KNOWN = 8  # digits 0 to 7 are learned, 8 and 9 are near-OOD
TEST_SHARE = 0.3
NOISE = 500
CLINC150 = "clinc150-minilm.npz"
CLINC150_SHA256 = "150dff2f714088c5695e3e11ca2c8e7e570be593aa9420556ea12b040d1c089d"


def open_digits(*, order: int | str = "label", tasks: Tasks = 4) -> Stream:
    """The stream of :func:`digits`."""
    train, test, ood = digits()
    return Stream.from_sources(train, test, name="digits", order=order, tasks=tasks, ood=ood, augmentation="shift")


def digits() -> tuple[ArraySource, ArraySource, dict[str, dict[str, ArraySource]]]:
    """Training and test images of the digits 0 to 7, and the OOD sets; always the same.

    All images are uint8 ``[n, 8, 8, 1]``. Near-OOD are the digits 8 and 9. Far-OOD are patches of the two photographs
    that come with scikit-learn, 32 pixels square reduced to 8, and uniform noise.
    """
    try:
        from sklearn.datasets import load_digits, load_sample_images
    except ImportError as error:
        raise MissingDependencyError("scikit-learn", "train", "the digits stream") from error
    data = load_digits()
    images = np.rint(data.images * (255 / 16)).astype(np.uint8)[..., None]
    labels = data.target.astype(np.int64)
    test = _test_rows(labels)
    known = labels < KNOWN
    rng = np.random.RandomState(0)  # the generator whose draws NumPy has promised never to change
    far = {
        "photographs": ArraySource(np.concatenate([_patches(photo) for photo in load_sample_images().images])),
        "noise": ArraySource(rng.randint(0, 256, (NOISE, 8, 8, 1)).astype(np.uint8)),
    }
    near = {"eight_nine": ArraySource(images[~known], labels[~known])}
    return (
        ArraySource(images[known & ~test], labels[known & ~test]),
        ArraySource(images[known & test], labels[known & test]),
        {"near": near, "far": far},
    )


def _test_rows(labels: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
    """A mask of the test samples: the same share of every class."""
    rng = np.random.RandomState(0)
    chosen = np.zeros(len(labels), bool)
    for c in range(int(labels.max()) + 1):
        members = rng.permutation(np.flatnonzero(labels == c))
        chosen[members[: round(TEST_SHARE * len(members))]] = True
    return chosen


def _patches(photo: Any) -> Any:
    """The grey 32 × 32 patches of a photograph ``[H, W, 3]``, side by side, each reduced to 8 × 8 by averaging."""
    grey = photo @ np.array([0.299, 0.587, 0.114])  # ITU-R BT.601 luma
    height, width = grey.shape[0] // 32, grey.shape[1] // 32
    small = grey[: height * 32, : width * 32].reshape(height * 8, 4, width * 8, 4).mean((1, 3))
    tiles = small.reshape(height, 8, width, 8).swapaxes(1, 2).reshape(-1, 8, 8, 1)
    return np.rint(tiles).astype(np.uint8)


def standardised(stream: Stream) -> Stream:
    """A stream of vectors with mean 0 and variance 1 per dimension over the training samples of its first task."""
    first = stream.train.take(stream.train_rows(0))
    to = FeatureSource(first, stream.train.labels, *standardisation(first)).standardise
    ood = tuple(OODSet(s.name, s.group, to(s.source)) for s in stream.ood)
    return dataclasses.replace(stream, train=to(stream.train), test=to(stream.test), ood=ood)


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

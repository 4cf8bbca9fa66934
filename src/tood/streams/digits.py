"""The digits stream: scikit-learn's handwritten digits, which need no download."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from tood.errors import MissingDependencyError
from tood.streams.sources import ArraySource
from tood.streams.stream import Stream, Tasks

__all__ = ["digits", "open_digits"]

KNOWN = 8  # digits 0 to 7 are learned, 8 and 9 are near-OOD
TEST_SHARE = 0.3
NOISE = 500


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

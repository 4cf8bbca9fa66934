"""The stream inside the package: CIFAR-10 as components of frozen features, which need no download."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from tood.streams.arrival import Tasks
from tood.streams.stream import Stream

__all__ = ["open_components"]


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

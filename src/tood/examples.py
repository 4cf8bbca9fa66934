"""Real logits inside the package, for trying things out."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np

from tood.arrays import FloatArray, IntArray
from tood.errors import ToodError

__all__ = ["CLASSES", "Example", "example"]

CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
STEPS = 5


class Example(NamedTuple):
    """Logits of one learner after one task, float32, and labels, which are logit columns."""

    tasks: list[list[int]]  # logit columns of each task
    calibration: FloatArray  # [20 per class, C]
    labels: IntArray  # of the calibration samples
    test: FloatArray  # [100 per class, C]
    test_labels: IntArray
    near: FloatArray  # [500, C], unknown inputs: CIFAR-100
    far: FloatArray  # [500, C], unknown inputs: textures
    classes: tuple[str, ...]  # [C], their names


def example(step: int = STEPS - 1) -> Example:
    """Logits of WA on CIFAR-10, learned in five tasks of two classes on frozen EfficientNet-Lite0 features.

    ``benchmarks/embedded_data.py`` made them. The calibration samples were not trained on.

    Parameters
    ----------
    step:
        After which task, 0 to 4; the last by default.

    Examples
    --------
    >>> ex = example()
    >>> ex.tasks, ex.calibration.shape, ex.test.shape
    ([[0, 1], [2, 3], [4, 5], [6, 7], [8, 9]], (200, 10), (1000, 10))
    """
    if step not in range(STEPS):
        raise ToodError(f"step: expected 0 to {STEPS - 1}, found {step}")
    with np.load(Path(__file__).with_name("example.npz")) as file:
        logits = {name: file[f"{name}.{step}"].astype(np.float32) for name in ("calibration", "test", "near", "far")}
        labels, test_labels = (file[f"{name}.{step}.labels"].astype(np.int64) for name in ("calibration", "test"))
    tasks = [[2 * t, 2 * t + 1] for t in range(step + 1)]
    known = (logits["calibration"], labels, logits["test"], test_labels)
    return Example(tasks, *known, logits["near"], logits["far"], CLASSES[: 2 * step + 2])

"""A small classification problem with easy OOD samples, for checking detectors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from tood.detectors import Head, Outputs

DIMENSIONS, CLASSES, TASKS, NOISE = 16, 6, 3, 0.25
Array = npt.NDArray[Any]

NEAR_IDENTITY = np.eye(DIMENSIONS) + 0.1 * np.random.default_rng(0).normal(size=(DIMENSIONS, DIMENSIONS))
MIX: Array = NEAR_IDENTITY.astype(np.float32)  # features are relu(inputs @ MIX + SHIFT)
SHIFT = np.float32(0.05)


@dataclass(frozen=True, eq=False)
class Problem:
    """Outputs of a fit set, a test set and OOD samples, with the head, and the network if requested."""

    fit: Outputs
    test: Outputs
    ood: Outputs
    head: Head
    partition: list[list[int]]
    network: Any = None

    def fit_arguments(self) -> dict[str, Any]:
        """Arguments of ``Detector.fit`` besides outputs."""
        return {"partition": self.partition, "head": self.head, "network": self.network}


def make_problem(
    rows: int = 600, dtype: Any = np.float32, seen: list[int] | None = None, with_network: bool = False
) -> Problem:
    """Gaussian classes mapped to rectified features; OOD samples lie between two classes, close to the origin.

    Parameters
    ----------
    rows:
        Number of fit samples.
    dtype:
        Precision of logits and features.
    seen:
        Classes that have samples; all if None.
    with_network:
        Also make the network, a torch module with ``features``, and the inputs.
    """
    rng = np.random.default_rng(0)
    each = np.arange(CLASSES)
    centres = np.zeros((CLASSES, DIMENSIONS))
    centres[each, each] = 3.0
    centres[each, (each + 1) % CLASSES] += 1.0

    def features_of(points: Array) -> Array:
        return np.asarray(np.maximum(points.astype(np.float32) @ MIX + SHIFT, 0))

    means = features_of(centres).astype(np.float64)
    weight = (means - means.mean(axis=0)).astype(np.float32)
    bias = (-(means**2).sum(axis=1) / 2 + 4).astype(np.float32)

    def outputs(points: Array, labels: Array | None = None) -> Outputs:
        features = features_of(points)
        logits = features @ weight.T + bias
        inputs = points.astype(np.float32).reshape(-1, 1, 4, 4) if with_network else None
        return Outputs(logits.astype(dtype), features.astype(dtype), labels, inputs)

    def draw(count: int) -> Outputs:
        labels = rng.choice(each if seen is None else np.asarray(seen), count)
        return outputs(centres[labels] + NOISE * rng.normal(size=(count, DIMENSIONS)), labels)

    fit, test = draw(rows), draw(120)
    first = rng.integers(CLASSES, size=120)
    between = (centres[first] + centres[(first + CLASSES // 2) % CLASSES]) / 12
    ood = outputs(between + NOISE * rng.normal(size=(120, DIMENSIONS)))
    partition = [part.tolist() for part in np.array_split(each, TASKS)]
    network = make_network(weight, bias) if with_network else None
    return Problem(fit, test, ood, Head(weight, bias), partition, network)


def make_network(weight: Array, bias: Array) -> Any:
    """The torch module that computes these features and logits."""
    import torch

    from tood.models import Network

    mix, head = torch.nn.Linear(DIMENSIONS, DIMENSIONS), torch.nn.Linear(DIMENSIONS, len(weight))
    mix.load_state_dict({"weight": torch.tensor(MIX.T), "bias": torch.full((DIMENSIONS,), float(SHIFT))})
    head.load_state_dict({"weight": torch.tensor(weight), "bias": torch.tensor(bias)})
    return Network.wrap(torch.nn.Sequential(torch.nn.Flatten(), mix, torch.nn.ReLU(), head))

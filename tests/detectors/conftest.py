from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pytest
import torch

from tood.detectors import Head, Outputs

D, CLASSES = 16, 6


class Net(torch.nn.Module):
    """Rectified linear features of a small image, and a linear head."""

    def __init__(self, weight, bias):
        super().__init__()
        self.mix = torch.nn.Linear(D, D)
        self.mix.weight.data = torch.eye(D) + 0.1 * torch.randn(D, D, generator=torch.Generator().manual_seed(0))
        self.mix.bias.data.fill_(0.05)
        self.head = torch.nn.Linear(D, len(weight))
        self.head.load_state_dict({"weight": torch.tensor(weight), "bias": torch.tensor(bias)})

    def features(self, x):
        return self.mix(x.flatten(1)).relu()

    def forward(self, x):
        return self.head(self.features(x))


class Problem(NamedTuple):
    fit: Outputs
    test: Outputs
    ood: Outputs
    head: Head
    network: Net
    partition: list

    def fit_kwargs(self):
        return {"partition": self.partition, "head": self.head, "network": self.network}


def make_problem(seed=0, classes=CLASSES, rows=600, dtype=np.float32, seen=None, tasks=3):
    """Blobs around class centres on the positive orthant; OOD lies between two of them, near the origin."""
    rng = np.random.default_rng(seed)
    centres = np.zeros((classes, D))
    centres[np.arange(classes), np.arange(classes)] = 3.0
    centres[np.arange(classes), (np.arange(classes) + 1) % classes] += 1.0
    probe = Net(np.zeros((classes, D), np.float32), np.zeros(classes, np.float32))

    def images(points):
        return torch.tensor(points, dtype=torch.float32).reshape(-1, 1, 4, 4)

    with torch.no_grad():
        means = probe.features(images(centres)).numpy().astype(np.float64)
    weight = (means - means.mean(axis=0)).astype(np.float32)
    bias = (-(means**2).sum(axis=1) / 2 + 4).astype(np.float32)
    network = Net(weight, bias)

    def outputs(points, labels=None):
        x = images(points)
        with torch.no_grad():
            features = network.features(x)
            logits = network.head(features)
        return Outputs(logits.numpy().astype(dtype), features.numpy().astype(dtype), labels, x)

    def draw(count, known):
        labels = rng.choice(known, count)
        return outputs(centres[labels] + 0.25 * rng.normal(size=(count, D)), labels)

    known = np.arange(classes) if seen is None else np.asarray(seen)
    fit, test = draw(rows, known), draw(120, known)
    first = rng.integers(classes, size=120)
    between = (centres[first] + centres[(first + classes // 2) % classes]) / 12
    ood = outputs(between + 0.25 * rng.normal(size=(120, D)))
    partition = [part.tolist() for part in np.array_split(np.arange(classes), tasks)]
    return Problem(fit, test, ood, Head(weight, bias), network, partition)


@pytest.fixture(scope="session")
def problem():
    return make_problem()


@pytest.fixture(scope="session")
def build():
    return make_problem

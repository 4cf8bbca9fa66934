"""The ranking of pytorch-ood 0.4, on random networks, wherever it computes the same thing."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.stats import spearmanr

from tood import detectors
from tood.detectors import Head, Outputs

PARAMETERS = {"vim": {"dim": 24}, "nnguide": {"alpha": 1.0}, "ash-s": {"variant": "s"}, "ash-p": {"variant": "p"}}
NAMES = ["msp", "maxlogit", "energy", "gen", "klm", "dice", "ash", "ash-s", "ash-p", "scale", "react", "vim"]
NAMES += ["mds", "rmds", "knn", "nnguide", "fdbd", "she", "nci", "gradnorm"]


@pytest.fixture(scope="module", params=[0, 1])
def random_network(request):
    """A random two-layer network on random inputs with class structure; its head agrees with the labels."""
    rng = np.random.default_rng(request.param)
    classes, dims, hidden = 20, 48, 64
    mix = rng.normal(size=(hidden, dims)) / 8
    centres = rng.normal(size=(classes, hidden)) * 2

    def features(points):
        return np.maximum(points @ mix, 0).astype(np.float32)

    weight = features(centres)
    weight = (weight - weight.mean(axis=0)) / 10  # no probability below pytorch-ood's floor of 1e-7
    bias = (-5 * (weight**2).sum(axis=1)).astype(np.float32)

    def draw(rows, noise):
        labels = np.arange(rows) % classes
        z = features(centres[labels] + noise * rng.normal(size=(rows, hidden)))
        return Outputs(z @ weight.T + bias, z, labels)

    return draw(2000, 0.8), draw(600, 2.0), Head(weight, bias)


@pytest.mark.parametrize("name", NAMES)
def test_ranking(name, random_network, peers):
    fit, test, head = random_network
    detector = detectors.create(name.split("-")[0], **PARAMETERS.get(name, {})).fit(fit, head=head)
    peer = peers.peers(head.weight, head.bias, dim=24)[name]
    tensors = [torch.from_numpy(part) for part in (fit.logits, fit.features, fit.labels)]
    if detector.fits_on != "none":
        peer.fit(*tensors)
    expected = peer.score(torch.from_numpy(test.logits), torch.from_numpy(test.features))
    assert spearmanr(detector.score(test), expected.numpy())[0] >= 0.9999


def test_odin_ranking(peers):
    torch.manual_seed(0)
    layers = [torch.nn.Conv2d(3, 8, 3), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(8 * 36, 10)]
    network = torch.nn.Sequential(*layers).double()
    inputs = torch.randn(200, 3, 8, 8).double()
    expected = peers.import_pytorch_ood().ODIN(network, norm_std=[0.5] * 3).predict(inputs)
    outputs = Outputs(network(inputs).detach(), inputs=inputs)
    assert spearmanr(detectors.create("odin").fit(network=network).score(outputs), -expected)[0] >= 0.9999

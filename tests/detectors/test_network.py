"""ODIN and AdaScale against slow versions that take one sample at a time, on a small convolutional network."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tood import detectors
from tood.detectors import Detector, Head, Outputs
from tood.errors import ToodError


class ConvNet(torch.nn.Module):
    def __init__(self, channels=3, dims=24, classes=7):
        super().__init__()
        self.backbone = torch.nn.Sequential(
            torch.nn.Conv2d(channels, 8, 3, padding=1),
            torch.nn.BatchNorm2d(8),
            torch.nn.ReLU(),
            torch.nn.Conv2d(8, dims, 3, stride=2),
            torch.nn.Dropout(0.5),
            torch.nn.ReLU(),
        )
        self.head = torch.nn.Linear(dims, classes)

    def features(self, x):
        return self.backbone(x).mean(dim=(2, 3))

    def forward(self, x):
        return 20 * self.head(self.features(x))


@pytest.fixture
def setup():
    """A network in training mode, whose batch normalisation and dropout would show if they were left on."""
    torch.manual_seed(0)
    network = ConvNet()
    for _ in range(3):
        network(torch.randn(16, 3, 8, 8) * 2 + 1)
    fit, test = torch.randn(40, 3, 8, 8), torch.randn(25, 3, 8, 8) * 1.5
    head = Head(20 * network.head.weight, 20 * network.head.bias)
    return network, head, Outputs(torch.zeros(40, 7), inputs=fit), Outputs(torch.zeros(25, 7), inputs=test)


def slow_odin(network, x, temperature, epsilon, std):
    x = x[None].clone().requires_grad_(True)
    logits = network(x) / temperature
    torch.nn.functional.cross_entropy(logits, logits.argmax(dim=1)).backward()
    sign = torch.where(x.grad >= 0, 1.0, -1.0) / torch.tensor(std).reshape(-1, 1, 1)
    return (network(x.detach() - epsilon * sign) / temperature).softmax(dim=1).max().item()


@pytest.mark.parametrize(("temperature", "epsilon", "std"), [(1000, 0.0014, 0.5), (1, 0.05, (0.2, 0.3, 0.4))])
def test_odin_is_the_per_sample_version(setup, temperature, epsilon, std):
    network, _, _, test = setup
    detector = detectors.create("odin", temperature=temperature, epsilon=epsilon, std=std).fit(network=network)
    found = detector.score(test)
    network.eval()
    expected = [slow_odin(network, x, temperature, epsilon, std) for x in test.inputs]
    np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_odin_takes_one_channel(setup):
    network = ConvNet(channels=1)
    inputs = torch.randn(5, 1, 8, 8)
    found = detectors.create("odin").fit(network=network).score(Outputs(torch.zeros(5, 7), inputs=inputs))
    network.eval()
    np.testing.assert_allclose(found, [slow_odin(network, x, 1000, 0.0014, 0.5) for x in inputs], rtol=1e-5)
    detector = detectors.create("odin", std=(0.1, 0.2, 0.3)).fit(network=network)
    with pytest.raises(ToodError, match="std: expected one number, or 1, one per channel, found 3"):
        detector.score(Outputs(torch.zeros(5, 7), inputs=inputs))


def slow_reaction(network, head, x, k1, k2, weight, share):
    x = x[None].clone().requires_grad_(True)
    z = network.features(x)
    (z @ head.weight.T + head.bias).max().backward()
    gradient = x.grad.flatten()
    least = gradient.abs().argsort()[: max(1, int(share * gradient.numel()))]
    step = torch.zeros_like(gradient)
    step[least] = 0.5 * gradient[least].sign()
    moved = network.features(x.detach() + step.reshape(x.shape))[0].detach()
    z = z[0].detach()
    order = z.argsort(descending=True)
    top1, top2 = (order[: max(1, int(z.numel() * k / 100))] for k in (k1, k2))
    return z, float(moved[top1].relu().sum() + weight * (z - moved)[top2].abs().sum())


def slow_adascale(network, head, known, x, variant, percentiles, **settings):
    z, reaction = slow_reaction(network, head, x, **settings)
    low, high = percentiles
    percentile = low + (1 - (known <= reaction).mean()) * (high - low)
    kept = z.numel() - round(z.numel() * percentile / 100)
    r = z.relu().sum() / z.relu().sort(descending=True).values[:kept].sum()
    logits = head.weight @ (z * r.exp()) + head.bias if variant == "a" else (head.weight @ z + head.bias) * r**2
    return float(logits.detach().logsumexp(dim=0))


@pytest.mark.parametrize("variant", ["a", "l"])
@pytest.mark.parametrize(
    ("percentiles", "settings"),
    [
        ((75, 85), {"k1": 30, "k2": 20, "weight": 10, "share": 0.05}),
        ((20, 90), {"k1": 5, "k2": 50, "weight": 0.5, "share": 0.4}),
    ],
)
def test_adascale_is_the_per_sample_version(setup, variant, percentiles, settings):
    network, head, fit, test = setup
    head = Head(head.weight.detach(), head.bias.detach())
    detector = detectors.create("adascale", variant=variant, percentiles=percentiles, **settings)
    found = detector.fit(fit, head=head, network=network).score(test)
    network.eval()
    known = np.array([slow_reaction(network, head, x, **settings)[1] for x in fit.inputs])
    expected = [slow_adascale(network, head, known, x, variant, percentiles, **settings) for x in test.inputs]
    np.testing.assert_allclose(found, expected, rtol=2e-4)


class Doubling(torch.nn.Module):
    """Features that are exact in half precision for small whole numbers."""

    def __init__(self):
        super().__init__()
        self.factor = torch.nn.Parameter(torch.tensor(2.0))

    def features(self, x):
        return self.factor * x.flatten(1)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("variant", ["a", "l"])
def test_adascale_of_a_network_in_half_precision_is_that_in_single(dtype, variant):
    rng = torch.Generator().manual_seed(0)
    sizes = torch.stack([torch.randperm(24, generator=rng) + 1.0 for _ in range(3)])  # no two gradients tie
    head = Head(sizes * torch.tensor([1.0, -1.0]).repeat(12), torch.zeros(3))
    fit, test = (torch.randint(0, 60, (40, 2, 3, 4), generator=rng) / 2 for _ in range(2))
    found = []
    for kind in (torch.float32, dtype):
        outputs = [Outputs(torch.zeros(40, 3), inputs=inputs.to(kind)) for inputs in (fit, test)]
        detector = detectors.create("adascale", variant=variant, k1=50, k2=50, weight=0.3, share=0.5)
        detector.fit(outputs[0], head=head, network=Doubling().to(kind))
        found.append((detector.reactions_, detector.score(outputs[1])))
    np.testing.assert_array_equal(found[1][0], found[0][0])
    np.testing.assert_array_equal(found[1][1], found[0][1])


@pytest.mark.filterwarnings("ignore:adascale. share")
def test_counts_that_round_down_to_none_are_one_and_say_so(setup):
    network, head, fit, test = setup
    with pytest.warns(UserWarning, match="rounds down to none; one is used") as warned:
        detector = detectors.create("adascale", k2=1, share=0.001).fit(fit, head=head, network=network)
    messages = " ".join(str(warning.message) for warning in warned)
    assert "k2 = 1 of 24 rounds down to none" in messages
    assert "share = 0.001 of 192 rounds down to none" in messages
    assert "k1" not in messages
    same = detectors.create("adascale", k2=100 / 24, share=0.001).fit(fit, head=head, network=network)
    np.testing.assert_array_equal(detector.score(test), same.score(test))


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("mode", ["train", "eval", "mixed"])
@pytest.mark.parametrize("name", ["odin", "adascale"])
def test_the_network_is_left_as_it_was(setup, name, mode):
    network, head, fit, test = setup
    network.train(mode != "eval")
    if mode == "mixed":
        network.backbone[1].eval()
    network.head.requires_grad_(False)
    before = {key: value.clone() for key, value in network.state_dict().items()}
    flags = [(module.training, [p.requires_grad for p in module.parameters()]) for module in network.modules()]
    inputs = test.inputs.clone()
    with torch.inference_mode():
        detectors.create(name).fit(fit, head=head, network=network).score(test)
    after = [(module.training, [p.requires_grad for p in module.parameters()]) for module in network.modules()]
    assert after == flags
    assert all(p.grad is None for p in network.parameters())
    assert all(torch.equal(value, before[key]) for key, value in network.state_dict().items())
    assert torch.equal(test.inputs, inputs)
    assert not test.inputs.requires_grad


def test_a_loaded_detector_asks_for_its_network(setup, tmp_path):
    network, _, _, test = setup
    detectors.create("odin").fit(network=network).save(tmp_path / "odin")
    with pytest.raises(ToodError, match="network: odin runs the network again"):
        Detector.load(tmp_path / "odin").score(test)
    with pytest.raises(ToodError, match=r"network: expected a torch.nn.Module, found function"):
        detectors.create("odin").fit(network=lambda x: x).score(test)


def test_a_standard_deviation_per_channel_may_be_an_array(setup, tmp_path):
    network, _, _, test = setup
    detector = detectors.create("odin", std=np.array([0.2, 0.3, 0.4])).fit(network=network)
    detector.save(tmp_path / "odin")
    for again in (detectors.create("odin", std=(0.2, 0.3, 0.4)).fit(network=network), Detector.load(tmp_path / "odin")):
        again.network = network
        np.testing.assert_array_equal(again.score(test), detector.score(test))
    detector.set_params(std=np.array([0.5, 0.5, 0.5]))
    np.testing.assert_array_equal(detector.score(test), detectors.create("odin").fit(network=network).score(test))


def test_adascale_says_what_it_wants_of_a_network_and_of_percentiles(setup):
    _, head, fit, _ = setup
    with pytest.raises(ToodError, match="network: expected a method features"):
        detectors.create("adascale").fit(fit, head=head, network=torch.nn.Flatten())
    with pytest.raises(ToodError, match="percentiles: expected a low and a high one"):
        detectors.create("adascale", percentiles=3)
    detector = detectors.create("adascale")
    with pytest.raises(ToodError, match="percentiles: expected a low and a high one"):
        detector.set_params(percentiles=(75, None))
    assert detector.percentiles == (75, 85)

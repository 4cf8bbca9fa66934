"""Networks: sizes known from the literature, identities between forward paths, round trips."""

import json
import sys
import types
from typing import ClassVar

import numpy as np
import pytest
import torch
from torch import nn

from tood import ToodError, models
from tood.errors import UnknownNameError
from tood.models import Network
from tood.storage.files import write_tensors

SHAPES = {"mlp": (16,), "convnet": (8, 8, 1)}
SMALL = ["convnet", "mlp", "resnet8", "vit"]


def inputs(name, n=4):
    shape = SHAPES.get(name, (32, 32, 3))
    torch.manual_seed(0)
    return torch.randn(n, *shape) if len(shape) == 1 else torch.randn(n, shape[2], shape[0], shape[1])


def trained(name, columns=3):
    """A network whose batch normalisation has statistics of its own."""
    network = models.create(name, SHAPES.get(name, (32, 32, 3)), columns=columns, seed=1)
    network.train()
    with torch.no_grad():
        for _ in range(3):
            network(inputs(name, 16) * 2 + 1)
        network.head.bias.uniform_(-1, 1)
    return network.eval()


def test_known_sizes():
    def count(name, shape):
        return sum(p.numel() for p in models.create(name, shape).backbone.parameters())

    assert count("resnet32", (32, 32, 3)) == 463_504  # PyCIL's variant without its head
    assert count("resnet20", (32, 32, 3)) == 269_072  # He et al., Table 6: 0.27 M
    assert count("resnet18", (224, 224, 3)) == 11_176_512  # torchvision's 11,689,512 without fc
    assert count("resnet18_imagenet", (64, 64, 3)) == 11_176_512  # the same stem, whatever the size


def test_resnet_shortcut_is_subsampling_and_zeros():
    block = models.create("resnet8", (32, 32, 3)).backbone.stages[1]
    x = torch.rand(2, 16, 32, 32)
    expected = torch.cat([x[:, :, ::2, ::2], torch.zeros(2, 16, 16, 16)], 1)
    assert torch.equal(block.shortcut(x), expected)


@pytest.mark.parametrize("name", models.names())
def test_features_and_logits(name):
    network = models.create(name, SHAPES.get(name, (32, 32, 3)), columns=3).eval()
    x = inputs(name, 2)
    features = network.features(x)
    assert features.shape == (2, network.head.dim)
    signed = name == "vit" or name.endswith("_icarl")  # these end without a ReLU
    assert bool((features < 0).any()) == signed
    weight, bias = network.effective_head()
    torch.testing.assert_close(network(x), features @ weight.T + bias)


def test_vit_ends_in_layer_norm():
    features = models.create("vit", (32, 32, 3)).eval().features(inputs("vit"))
    torch.testing.assert_close(features.mean(1), torch.zeros(4), atol=1e-5, rtol=0)
    torch.testing.assert_close(features.var(1, unbiased=False), torch.ones(4), atol=1e-3, rtol=0)


def test_same_seed_same_weights_and_torch_state_untouched():
    torch.manual_seed(3)
    state = torch.get_rng_state()
    a, b, c = (models.create("mlp", (4,), columns=2, seed=s) for s in (0, 0, 1))
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(a.head.weight, b.head.weight) and not torch.equal(a.head.weight, c.head.weight)


def test_growing_keeps_old_logits():
    network = trained("mlp")
    x = inputs("mlp")
    before = network(x)
    network.grow(200)
    assert network.head.columns == 203
    torch.testing.assert_close(network(x)[:, :3], before)
    new = network.head.weight[3:].detach()
    assert new.abs().max() <= np.sqrt(3 / 64) and float(new.var()) == pytest.approx(1 / 64, rel=0.05)
    assert not network.head.bias[3:].any()


def test_correction_is_inside_the_network():
    network = trained("mlp", columns=4)
    x = inputs("mlp")
    plain = network(x).detach()
    network.head.correct(slice(2, None), 0.5, -1.0)
    expected = plain.clone()
    expected[:, 2:] = 0.5 * plain[:, 2:] - 1
    torch.testing.assert_close(network(x), expected)
    weight, bias = network.effective_head()
    torch.testing.assert_close(network.features(x) @ weight.T + bias, expected)
    network.head.correct(slice(0), 1.0, 0.0)
    assert torch.equal(network(x), plain)


@pytest.mark.parametrize("name", SMALL)
def test_save_and_load_alone(name, tmp_path):
    network = trained(name)
    network.head.correct(slice(1, None), 2.0, 0.25)
    network.save(tmp_path / "model.safetensors")
    again = Network.load(tmp_path / "model.safetensors").eval()
    assert torch.equal(again(inputs(name)), network(inputs(name)))


@pytest.mark.parametrize("name", SMALL)
def test_fused_answers_the_same(name):
    network = trained(name)
    fused = network.fused()
    assert not any(isinstance(m, nn.BatchNorm2d) for m in fused.modules())
    assert not any(p.requires_grad for p in fused.parameters()) and not fused.training
    torch.testing.assert_close(fused(inputs(name)), network(inputs(name)), rtol=1e-4, atol=1e-5)


def test_fused_leaves_normalisation_by_the_batch_s_own_statistics():
    layers = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4, track_running_stats=False), nn.Flatten(), nn.Linear(144, 2)
    network, x = Network.wrap(nn.Sequential(*layers)).eval(), torch.randn(5, 3, 8, 8)
    torch.testing.assert_close(network.fused()(x), network(x))


def test_training_in_channels_last_equals_contiguous():
    x, y = inputs("resnet8", 8), torch.arange(8) % 3
    gradients = []
    for layout in (torch.contiguous_format, torch.channels_last):
        network = models.create("resnet8", (32, 32, 3), columns=3).double().to(memory_format=layout)
        nn.functional.cross_entropy(network(x.double().contiguous(memory_format=layout)), y).backward()
        gradients.append([p.grad for p in network.parameters()])
    for a, b in zip(*gradients, strict=True):
        torch.testing.assert_close(a, b)


class Own(nn.Module):
    def __init__(self, scale=1.0):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(5, 7), nn.Tanh())
        self.out = nn.Linear(7, 4)
        self.scale = scale

    def forward(self, x):
        return self.scale * self.out(self.body(x))


def test_wrap_accepts_a_module_as_it_is(tmp_path):
    module, x = Own(), torch.randn(3, 5)
    network = Network.wrap(module, example=x)
    torch.testing.assert_close(network(x), module(x))
    torch.testing.assert_close(network.features(x), module.body(x))
    network.grow(2)
    assert module.out.out_features == 4  # the module itself is not touched
    network.save(tmp_path / "own.safetensors")
    with pytest.raises(ToodError, match="pass its backbone"):
        Network.load(tmp_path / "own.safetensors")
    again = Network.load(tmp_path / "own.safetensors", backbone=Network.wrap(Own()).backbone)
    assert torch.equal(again(x), network(x))


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_wrap_and_save_in_any_precision(dtype, tmp_path):
    module, x = Own().to(dtype), torch.randn(3, 5, dtype=dtype)
    network = Network.wrap(module, example=x)
    assert torch.equal(network(x), module(x))
    network.save(tmp_path / "own.safetensors")
    again = Network.load(tmp_path / "own.safetensors", backbone=Network.wrap(Own().to(dtype)).backbone)
    assert torch.equal(again(x), network(x))


def test_wrap_refuses_what_does_not_end_linear():
    layer, x = nn.Linear(5, 2), torch.randn(3, 5)
    torch.testing.assert_close(Network.wrap(layer, x)(x), layer(x))  # a bare layer is enough
    with pytest.raises(ToodError, match="is not what produces the output"):
        Network.wrap(Own(scale=2.0), example=torch.randn(3, 5))
    with pytest.raises(ToodError, match=r"expected a network whose last layer is nn\.Linear"):
        Network.wrap(nn.Conv2d(1, 1, 1))


def test_bad_names_and_shapes():
    with pytest.raises(UnknownNameError, match="did you mean 'resnet32'"):
        models.create("resnet-32", (32, 32, 3))
    with pytest.raises(ToodError, match=r"expected images \(H, W, C\), found \(8,\)"):
        models.create("resnet8", (8,))
    with pytest.raises(ToodError, match="whole 4-pixel patches"):
        models.create("vit", (30, 30, 3))
    with pytest.raises(ToodError, match="widht"):
        models.create("mlp", (8,), widht=3)


def test_timm_is_an_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "timm", None)
    with pytest.raises(ToodError, match=r'pip install "tood\[timm\]"'):
        models.create("timm:vit_base_patch16_224", (32, 32, 3))


def test_timm_models_are_resized_to_and_reload_without_the_hub(monkeypatch, tmp_path):
    asked = []

    class Model(nn.Sequential):
        num_features = 7
        default_cfg: ClassVar = {"input_size": (3, 16, 16), "mean": (0.5, 0.4, 0.3), "std": (0.2, 0.2, 0.5)}

    def create_model(name, num_classes, in_chans, pretrained=False):
        asked.append((name, num_classes, pretrained))
        return Model(nn.Flatten(), nn.Linear(in_chans * 16 * 16, 7))

    monkeypatch.setitem(sys.modules, "timm", types.SimpleNamespace(create_model=create_model))
    network = models.create("timm:some_vit", (8, 8, 3), columns=2, pretrained=True)
    x = torch.rand(2, 3, 8, 8)
    large = nn.functional.interpolate(x, (16, 16), mode="bicubic")
    torch.testing.assert_close(network.features(x), network.backbone[1](large))
    network.save(tmp_path / "m.safetensors")
    assert torch.equal(Network.load(tmp_path / "m.safetensors")(x), network(x))
    assert asked[0] == ("some_vit", 0, True) and set(asked[1:]) == {("some_vit", 0, False)}
    assert network.normalisation(3) == ((0.5, 0.4, 0.3), (0.2, 0.2, 0.5))
    assert network.normalisation(1) == (pytest.approx((0.4,)), pytest.approx((0.3,)))
    assert models.create("convnet", (8, 8, 3)).normalisation(3) is None


@pytest.mark.parametrize(
    "spec",
    [
        {"name": "timm:some_vit", "pretrained": True},
        {"name": "timm:some_vit", "pretrained_cfg": {"url": "https://example.org/weights.pth"}},
        {"name": "timm:some_vit", "pretrained_cfg_overlay": {"file": "weights.pth"}},
        {"name": "timm:some_vit", "cache_dir": "/tmp/elsewhere"},
        {"name": "timm:some_vit", "checkpoint_path": "weights.pth"},
        {"name": "timm:some_vit+pretrained"},
        {"name": "timm:hf-hub:owner/name"},
        {"name": "timm:local-dir:/tmp/model"},
        {"name": "efficientnet_lite0", "pretrained": True},
        {"name": "resnet8", "widths": [4]},
        {"name": 3},
    ],
    ids=json.dumps,
)
def test_a_file_cannot_cause_a_download(spec, monkeypatch, tmp_path):
    def create_model(*_, **__):
        raise AssertionError("timm was called")

    monkeypatch.setitem(sys.modules, "timm", types.SimpleNamespace(create_model=create_model))
    path = tmp_path / "model.safetensors"
    write_tensors(
        path, "tood-network", {"head.weight": np.zeros((2, 4))}, {"spec": json.dumps({"shape": [8, 8, 3], **spec})}
    )
    with pytest.raises(ToodError, match="not a usable network") as refused:
        Network.load(path)
    assert "timm was called" not in str(refused.value)


@pytest.mark.parametrize(
    "spec",
    [
        {"name": "mlp", "shape": [300_000], "widths": [900_000]},
        {"name": "vit", "shape": [32, 32, 3], "depth": 10**9},
        {"name": "mlp", "shape": [4], "widths": [], "top": {"name": "random", "width": 10**12, "seed": 0}},
    ],
    ids=lambda spec: spec["name"],
)
def test_a_small_file_cannot_describe_a_large_network(spec, tmp_path):
    """Each would take terabytes."""
    weights = {"head.weight": np.zeros((2, 4), np.float32), "head.bias": np.zeros(2, np.float32)}
    write_tensors(tmp_path / "f.safetensors", "tood-network", weights, {"spec": json.dumps(spec)})
    with pytest.raises(ToodError, match=r"f\.safetensors: not a usable network: (its weights|depth)"):
        Network.load(tmp_path / "f.safetensors")


def test_unknown_timm_models_are_one_line(torchvision):
    pytest.importorskip("timm")
    with pytest.raises(ToodError, match=r"^network 'timm:resnet19': Unknown model \(resnet19\)$"):
        models.create("timm:resnet19", (32, 32, 3))
    with pytest.raises(ToodError, match=r"'timm:resnet18\.none': .*Invalid pretrained tag"):
        models.create("timm:resnet18.none", (32, 32, 3))


class Halves(nn.Module):
    """A network of a user's own: every second number of a vector."""

    def __init__(self, shape):
        super().__init__()
        self.dim = shape[0] // 2

    def forward(self, x):
        return x[:, ::2]


def test_a_network_of_ones_own_by_its_path_or_registered(tmp_path, registries):
    network = models.create("tests.models.test_models:Halves", (16,), columns=3)
    x = inputs("mlp")
    assert torch.equal(network.features(x), x[:, ::2])
    network.save(tmp_path / "own.safetensors")
    with pytest.raises(ToodError, match="expected a network that is built in, registered or of timm"):
        Network.load(tmp_path / "own.safetensors")  # a file must not cause an import
    assert torch.equal(Network.load(tmp_path / "own.safetensors", backbone=Halves((16,)))(x), network(x))
    models.register("halves")(Halves)
    named = models.create("halves", (16,), columns=3)
    named.save(tmp_path / "named.safetensors")
    assert torch.equal(Network.load(tmp_path / "named.safetensors")(x), named(x))
    with pytest.raises(ToodError, match="has no attribute 'dim'"):
        models.create("torch.nn:Identity", (16,))


def test_resnet50_is_torchvisions(torchvision):
    from torchvision.models import resnet50

    theirs = resnet50(weights=None).eval()
    theirs.fc = nn.Identity()
    ours = models.create("resnet50", (64, 64, 3), small=False).eval()
    ours.backbone.load_state_dict(dict(zip(ours.backbone.state_dict(), theirs.state_dict().values(), strict=True)))
    x = torch.randn(1, 3, 64, 64)
    torch.testing.assert_close(ours.features(x), theirs(x))
    assert sum(p.numel() for p in ours.backbone.parameters()) == 23_508_032


def test_damaged_files(tmp_path):
    path = tmp_path / "model.safetensors"
    trained("mlp").save(path)
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ToodError, match=r"model\.safetensors: cannot be read"):
        Network.load(path)
    write_tensors(path, "tood-network", {"a": np.zeros(1)}, {"spec": json.dumps({"name": "mlp", "shape": [16]})})
    with pytest.raises(ToodError, match=r"not a usable network: 'head\.weight'"):
        Network.load(path)

"""Outputs of any model: the same numbers as calling it by hand, once, and nothing of it changed."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from tood import ToodError, models
from tood.models import Network
from tood.outputs import extract

X = torch.randn(10, 6, generator=torch.Generator().manual_seed(0))
Y = torch.arange(10) % 3


@pytest.fixture
def model():
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.Dropout(), nn.ReLU(), nn.Linear(5, 3))


def by_hand(model, x=X):
    model.eval()
    with torch.no_grad():
        return model[:-1](x).numpy(), model(x).numpy()


@pytest.mark.parametrize(
    ("batches", "labelled"),
    [
        (X, False),
        ([X[:7], X[7:]], False),
        ([X.numpy()], False),
        ([[X]], False),
        ((part for part in X.split(4)), False),
        ([(X[:7], Y[:7]), (X[7:], Y[7:])], True),
        ([(X, Y.tolist(), "more")], True),
        (TensorDataset(X, Y), True),
        (DataLoader(TensorDataset(X, Y), batch_size=3), True),
        ([{"input": X, "labels": Y}], True),
        ([{"image": X, "label": Y.numpy(), "file": ["a"] * 10}], True),
    ],
)
def test_batches_of_every_kind(model, batches, labelled):
    features, logits = by_hand(model)
    outputs = extract(model, batches)
    np.testing.assert_allclose(outputs.logits, logits, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(outputs.features, features, rtol=1e-5, atol=1e-6)
    assert outputs.logits.dtype == outputs.features.dtype == np.float32
    assert np.array_equal(outputs.labels, Y) if labelled else outputs.labels is None


def test_one_pass_in_evaluation_mode_and_the_model_as_before(model):
    model.train()
    model[1].eval()  # frozen batch normalisation inside a model that trains
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    calls = []
    hook = model.register_forward_hook(lambda module, inputs, output: calls.append(module.training))
    extract(model, X.split(4))
    hook.remove()
    assert calls == [False] * 3
    assert [module.training for module in model] == [True, False, True, True, True]
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
    assert not any(module._forward_hooks for module in model.modules())


def test_the_mode_is_restored_after_an_error(model):
    model.train()
    with pytest.raises(ToodError):
        extract(model, [X, "nonsense"])
    assert all(module.training for module in model.modules())
    assert not any(module._forward_hooks for module in model.modules())


def test_features_by_name_or_not_at_all(model):
    assert extract(model, X, features=False).features is None
    assert np.allclose(extract(model, X, features="0").features, X)
    scaled = nn.Sequential(model, nn.Softmax(dim=1))
    with pytest.raises(ToodError, match="no linear layer returns the model's logits"):
        extract(scaled, X)
    assert np.allclose(extract(scaled, X, features="0.4").features, by_hand(model)[0], atol=1e-6)
    with pytest.raises(ToodError, match="the model has no module 'fc'"):
        extract(model, X, features="fc")


def test_the_last_linear_layer_that_runs_not_the_last_declared():
    class Swapped(nn.Module):
        def __init__(self):
            super().__init__()
            self.classifier, self.body = nn.Linear(4, 2), nn.Linear(6, 4)

        def forward(self, x):
            return self.classifier(self.body(x).relu())

    model = Swapped()
    assert extract(model, X).features.shape == (10, 4)


def test_half_and_double_precision(model):
    assert extract(model.double(), X).logits.dtype == np.float64
    half = extract(model.to(torch.bfloat16), X)
    assert half.logits.dtype == half.features.dtype == np.float32


def test_our_networks_and_their_corrections():
    network = models.create("mlp", (6,), columns=3)
    network.head.correct(slice(1, 3), scale=2.0, offset=-1.0)
    outputs = extract(network, X)
    with torch.no_grad():
        assert np.allclose(outputs.logits, network(X), atol=1e-6)
        assert np.allclose(outputs.features, network.features(X), atol=1e-6)


@pytest.mark.parametrize(
    ("batches", "message"),
    [
        ([], "batches: expected at least one batch"),
        (3, "batches: expected an iterable of batches, found int"),
        ({"input": X}, "batches: expected an iterable of batches, found dict"),
        (["text"], "batches: expected tensors, .* found str"),
        ([X, (X, Y)], "expected labels in all batches or in none, found them in 1 of 2"),
        ([(X, Y[:3])], r"labels: expected 10 whole numbers, found shape \(3,\)"),
        ([(X, torch.eye(3)[Y])], r"labels: expected 10 whole numbers, found shape \(10, 3\)"),
        ([{"a": X, "b": X}], "batches: expected entries named input, found a, b"),
    ],
)
def test_batches_that_cannot_be_right(model, batches, message):
    with pytest.raises(ToodError, match=message):
        extract(model, batches)


def test_models_that_cannot_be_right():
    with pytest.raises(ToodError, match=r"model: expected a torch\.nn\.Module, found function"):
        extract(lambda x: x, X)
    with pytest.raises(ToodError, match=r"model: expected it to return logits \[n, C\].*shape \(10, 2, 3\)"):
        extract(nn.Unflatten(1, (2, 3)), X)


@pytest.mark.parametrize("name", ["resnet18", "vit_tiny_patch16_224"])
def test_timm_models(name, torchvision):
    timm = pytest.importorskip("timm")
    options = {"img_size": 32} if name.startswith("vit") else {}
    model = timm.create_model(name, num_classes=4, **options).eval()
    x = torch.randn(3, 3, 32, 32)
    outputs = extract(model, x)
    with torch.no_grad():
        np.testing.assert_allclose(outputs.logits, model(x), atol=1e-5)
        expected = model.forward_head(model.forward_features(x), pre_logits=True)
    np.testing.assert_allclose(outputs.features, expected, rtol=1e-4, atol=1e-5)


@pytest.fixture
def image_model(torchvision):
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.ViTConfig(
        hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8, image_size=8, patch_size=4
    )
    config.num_labels = 3
    return transformers.ViTForImageClassification(config)


def test_hugging_face_images(image_model):
    x = torch.randn(5, 3, 8, 8)
    outputs = extract(image_model, [{"pixel_values": x, "labels": torch.arange(5) % 3}])
    with torch.no_grad():
        expected = image_model.eval()(pixel_values=x, output_hidden_states=True)
    np.testing.assert_allclose(outputs.logits, expected.logits, atol=1e-6)
    assert outputs.features.shape == (5, 8)
    classifier = image_model.classifier
    assert np.allclose(classifier(torch.from_numpy(outputs.features)).detach(), outputs.logits, atol=1e-6)
    assert outputs.labels.tolist() == [0, 1, 2, 0, 1]


@pytest.mark.parametrize("family", ["Bert", "GPT2"])
def test_padding_of_text_changes_nothing(family):
    """Batches of different lengths; the encoder's head reads one vector, the decoder's head every token."""
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    encoder = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
    sizes = encoder if family == "Bert" else {"n_embd": 8, "n_layer": 1, "n_head": 2}
    ends = {"bos_token_id": 1, "eos_token_id": 1}
    config = getattr(transformers, f"{family}Config")(vocab_size=20, num_labels=3, pad_token_id=0, **ends, **sizes)
    model = getattr(transformers, f"{family}ForSequenceClassification")(config)
    tokens = torch.randint(2, 20, (4, 9))
    padded = torch.cat([tokens, torch.zeros(4, 3, dtype=torch.long)], dim=1)
    batches = [{"input_ids": t, "attention_mask": (t > 0).long()} for t in (tokens, padded)]
    outputs = extract(model, batches)
    assert outputs.features.shape == (8, 8)
    np.testing.assert_allclose(outputs.features[:4], outputs.features[4:], atol=1e-5)
    head = model.classifier if family == "Bert" else model.score
    np.testing.assert_allclose(head(torch.from_numpy(outputs.features)).detach(), outputs.logits, atol=1e-5)


def test_a_hugging_face_model_becomes_a_network(image_model):
    x = torch.randn(5, 3, 8, 8)
    network = Network.wrap(image_model, example=x)
    with torch.no_grad():
        assert torch.allclose(network.eval()(x), image_model.eval()(x).logits, atol=1e-6)
        assert network.features(x).shape == (5, 8)

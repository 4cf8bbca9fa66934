"""Frozen runs, end to end on digits: learners see the features of a network that never changes."""

import dataclasses

import numpy as np
import pytest
from click.testing import CliRunner

from tood import ToodError, streams
from tood.cli import cli
from tood.models import Network
from tood.outputs import Run, Step
from tood.runs.build import build
from tood.runs.config import RunConfig, measured_as
from tood.runs.plan import plan
from tood.runs.stages import run

CONFIG = RunConfig(learner="er", preset="frozen", network="convnet", settings={"epochs": 2})


@pytest.fixture(autouse=True)
def _cache(tmp_path_factory, monkeypatch):
    monkeypatch.setenv("TOOD_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))


@pytest.mark.parametrize(("adapter", "dim"), [(-1, 512), (32, 32), (0, 64)])
def test_the_adapter_is_a_trained_hidden_layer_or_none(adapter, dim):
    stream, learner = build(RunConfig(learner="er", preset="frozen", network="convnet", adapter=adapter))
    assert stream.train.shape == (64,) and learner.network.head.dim == dim
    hidden = [tuple(p.shape) for p in learner.network.backbone.parameters()]
    assert hidden == ([(dim, 64), (dim,)] if adapter else [])
    if adapter == 0:  # what the head sees is what was extracted
        vectors = learner.prepare(stream.train.take(np.arange(5)))
        np.testing.assert_array_equal(learner.network.features(vectors), vectors)


@pytest.mark.parametrize("learner", ["ncm", "slda", "fecam", "ranpac"])
def test_closed_forms_see_the_features_as_the_network_makes_them(learner):
    stream, made = build(RunConfig(learner=learner, preset="frozen", network="convnet"))
    assert stream.train.take(np.arange(50)).min() == 0  # after ReLU: neither centred nor scaled
    assert not list(made.untransformed.backbone.parameters())
    with pytest.raises(ToodError, match=f"adapter: {learner} takes no gradient steps"):
        build(RunConfig(learner=learner, preset="frozen", network="convnet", adapter=8))


def test_a_run_writes_what_the_small_network_answers_on_the_features(tmp_path):
    lines = []
    run(CONFIG, tmp_path / "run", say=lines.append)
    assert sum(line.startswith("step ") for line in lines) == 4
    stream, _ = build(CONFIG)
    step = Step(Run(tmp_path / "run"), 3)
    network = Network.load(step.folder / "model.safetensors").eval()
    rows = np.concatenate([stream.test_rows(task) for task in range(4)])
    import torch

    with torch.no_grad():
        expected = network(torch.from_numpy(stream.test.take(rows)))
    np.testing.assert_allclose(step.test.logits, expected, atol=1e-4)
    assert Run(tmp_path / "run").manifest["options"]["network"] == "convnet"


@pytest.mark.parametrize("store", ["all", "metrics"])
def test_what_old_images_gave_is_not_mixed_with_what_changed_ones_give(tmp_path, store):
    digits = streams.load("digits")
    images = digits.train.take(np.arange(len(digits.train)))
    images[len(images) // 2 :] = images[len(images) // 2 :, ::-1]
    changed = dataclasses.replace(digits, train=streams.ArraySource(images, digits.train.labels))
    config = dataclasses.replace(CONFIG, detectors=("energy",), store=store)
    run(config, tmp_path / "run", stream=digits, say=str)
    before = (tmp_path / "run/metrics.parquet").read_bytes()
    run(config, tmp_path / "run", stream=digits, say=str)
    assert (tmp_path / "run/metrics.parquet").read_bytes() == before
    if store == "all":
        with pytest.raises(ToodError, match=r"made with stream.samples = .*; use the same or another directory"):
            run(config, tmp_path / "run", stream=changed, say=str)
    else:
        run(config, tmp_path / "run", stream=changed, say=str)
        assert (tmp_path / "run/metrics.parquet").read_bytes() != before


def test_the_preset_implies_frozen_and_frozen_implies_the_preset():
    assert RunConfig(preset="frozen").frozen and RunConfig(frozen=True).preset == "frozen"
    assert RunConfig.from_mapping({"frozen": True}).preset == "frozen"
    assert RunConfig.from_mapping({"frozen": True, "preset": "cpu"}).preset == "cpu"
    assert RunConfig(stream="cifar100", preset="frozen").name == "cifar100-icarl-frozen-s0"
    assert RunConfig(stream="cifar100", preset="frozen").identity.options == {}
    assert RunConfig(preset="cpu", frozen=True).identity.options == {"frozen": True}
    assert RunConfig(order=3).name == "digits-icarl-cpu-s0-a84745"  # as before there were frozen runs


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"adapter": 8}, "adapter: expected frozen: true"),
        ({"frozen": "yes"}, "frozen: expected"),
        ({"preset": "frozen", "frozen": False}, "frozen: expected true with the preset frozen"),
        ({"frozen": True, "adapter": -2}, "adapter: expected"),
    ],
)
def test_bad_values(values, message):
    with pytest.raises(ToodError, match=message):
        RunConfig.from_mapping(values)


@pytest.mark.parametrize("detector", ["odin", "adascale"])
def test_detectors_that_need_images_are_refused(tmp_path, detector):
    arguments = ["run", "--network", "convnet", "--frozen", "--detectors", f"energy,{detector}"]
    result = CliRunner().invoke(cli, [*arguments, "--out", str(tmp_path / "run")])
    assert result.exit_code == 1
    assert f"{detector} needs images, but a frozen run has only features" in str(result.exception)


def test_a_dry_run_counts_the_images_and_extracts_nothing(tmp_path, monkeypatch):
    monkeypatch.setenv("TOOD_CACHE", str(tmp_path / "cache"))
    stream = streams.load("digits")
    images = len(stream.train) + len(stream.test) + sum(len(s.source) for s in stream.ood)
    assert plan(CONFIG, tmp_path / "run")["features"].startswith(f"{images:,} images to extract first")
    assert not (tmp_path / "cache").exists()
    build(CONFIG)
    assert "features" not in (planned := plan(CONFIG, tmp_path / "run")) and planned["training"]


def test_more_detectors_are_measured_even_if_the_run_is_killed_first(tmp_path, monkeypatch):
    config = dataclasses.replace(CONFIG, detectors=("energy",), store="metrics")
    run(config, tmp_path / "run", say=str)
    every = dataclasses.replace(config, detectors=())

    def killed(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("tood.learners.Learner.learn", killed)
    for _ in range(2):  # the second one is not mistaken for finished
        with pytest.raises(KeyboardInterrupt):
            run(every, tmp_path / "run", say=str)
    assert measured_as(config, tmp_path / "run") is not None and measured_as(every, tmp_path / "run") is None


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"settings": {"seed": 3}}, "seed is a setting of the run, not of the learner; use --seed"),
        ({"learner": "slda", "settings": {}, "track": "memory"}, "slda keeps no memory"),
    ],
)
def test_mistakes_are_found_before_features_are_extracted(tmp_path, monkeypatch, change, message):
    monkeypatch.setenv("TOOD_CACHE", str(tmp_path / "cache"))
    with pytest.raises(ToodError, match=message):
        run(dataclasses.replace(CONFIG, **change), tmp_path / "run", say=str)
    assert not (tmp_path / "cache").exists()


def test_another_runs_folder_is_refused_before_features_are_extracted(tmp_path, monkeypatch):
    run(dataclasses.replace(CONFIG, detectors=("energy",)), tmp_path / "run", say=str)
    monkeypatch.setenv("TOOD_CACHE", str(tmp_path / "cache"))
    with pytest.raises(ToodError, match="was made with seed = 0, not 1"):
        run(dataclasses.replace(CONFIG, seed=1), tmp_path / "run", say=str)
    assert not (tmp_path / "cache").exists()

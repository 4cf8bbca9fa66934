"""Presets: what the paper's text and the released files say, and that no table names what is not there."""

import dataclasses
from importlib.resources import files

import pytest
import yaml

from tood import learners, models, streams
from tood.errors import UnknownNameError

PLAIN = sorted(learners.LEARNERS)


def tables(name):
    return yaml.safe_load((files("tood.learners") / "presets" / f"{name}.yaml").read_text())


def test_names():
    assert learners.presets() == ["cpu", "paper", "released", "smoke"]
    with pytest.raises(UnknownNameError, match="unknown preset 'papr'; did you mean 'paper'"):
        learners.preset("papr", "cifar10", "icarl")


@pytest.mark.parametrize("name", ["cpu", "paper", "released", "smoke"])
def test_tables_name_only_what_exists(name):
    families = {stream.split("-")[0] for stream in streams.names()}
    everything = {key for learner in PLAIN for key in learners.settings_of(learner)} | {"network"}
    for table, values in tables(name).items():
        stream, _, learner = table.rpartition("/")
        assert stream in families | {""}
        if learner in PLAIN:
            assert values.keys() <= learners.settings_of(learner).keys(), table
        else:
            assert learner in families | {"all"} and values.keys() <= everything, table


@pytest.mark.parametrize("preset", ["cpu", "paper", "released", "smoke"])
@pytest.mark.parametrize("learner", learners.names())
def test_every_learner_can_be_made_from_every_preset(preset, learner):
    stream = streams.load("digits")
    made = learners.create(learner, stream, **learners.preset(preset, "digits", learner))
    assert made.network.head.dim == 64
    for name in streams.names():
        assert learners.preset(preset, name, learner)["network"] in models.names()


def test_paper_is_the_text():
    for stream, memory in (("cifar10", 500), ("cifar100", 2000), ("cifar100-20", 2000)):
        for learner in PLAIN:
            found = learners.preset("paper", stream, learner)
            text = {
                "epochs": 170,
                "batch_size": 128,
                "lr": 0.1,
                "momentum": 0.9,
                "milestones": [60, 100, 140],
                "gamma": 0.1,
            }
            assert text.items() <= found.items() and found["network"] == "resnet32"
            assert found.get("memory", memory) == memory
    assert learners.preset("paper", "imagenet1k", "wa")["network"] == "resnet18"


def test_released_is_the_table():
    icarl = learners.preset("released", "cifar10", "icarl")
    assert (icarl["epochs"], icarl["milestones"], icarl["gamma"], icarl["batch_size"]) == (70, [49, 63], 0.2, 128)
    assert (icarl["memory"], icarl["memory_unit"]) == (500, "class")
    assert learners.preset("released", "cifar100", "icarl")["batch_size"] == 64
    der = learners.preset("released", "cifar10", "der")
    assert (der["epochs"], der["batch_size"], der["lr"], der["schedule"], der["weight_decay"]) == (
        50,
        32,
        0.03,
        "none",
        3e-4,
    )
    assert (der["alpha"], der["beta"], der["momentum"], der["clip"]) == (0.1, 0.5, 0.9, 1.0)
    lwf = learners.preset("released", "cifar10", "lwf")
    assert (lwf["epochs"], lwf["batch_size"], lwf["schedule"], lwf["weight_decay"]) == (100, 64, "none", 5e-4)
    assert learners.preset("released", "cifar10", "wa")["milestones"] == [80, 120, 150]
    assert learners.preset("released", "cifar100", "bic")["memory"] == 2000


def test_ber_has_the_settings_of_icarl_with_it():
    for name in ("cpu", "released"):
        assert learners.preset(name, "cifar10", "ber") == learners.preset(name, "cifar10", "icarl+ber")
    assert learners.preset("released", "cifar10", "ber")["epochs"] == 70


def test_own_stream_gets_the_general_table():
    found = learners.preset("cpu", "mine", "er")
    assert found["epochs"] == 10 and "network" not in found


def test_settings_are_frozen():
    learner = learners.create("er", streams.load("digits"))
    with pytest.raises(dataclasses.FrozenInstanceError):
        learner.settings.epochs = 3

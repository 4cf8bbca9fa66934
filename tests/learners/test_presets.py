"""Presets: what the paper's text and the released files say, and that no table names what is not there."""

from importlib.resources import files

import pytest
import yaml

from tood import learners, models, streams

PLAIN = learners.names()
TRAINED = [name for name in PLAIN if not learners.classes()[name].closed_form]


def tables(name):
    return yaml.safe_load((files("tood.learners") / "presets" / f"{name}.yaml").read_text())


@pytest.mark.parametrize("name", ["cpu", "frozen", "paper", "released", "smoke"])
def test_tables_name_only_what_exists(name):
    families = {stream.split("-")[0] for stream in streams.names()}
    everything = {key for learner in PLAIN for key in learners.settings_of(learner)} | {"network", "adapter"}
    for table, values in tables(name).items():
        stream, _, learner = table.rpartition("/")
        assert stream in families | {""}
        if learner in PLAIN:
            assert values.keys() <= learners.settings_of(learner, "ber").keys(), table
        else:
            assert learner in families | {"all"} and values.keys() <= everything, table


@pytest.mark.parametrize("preset", ["cpu", "paper", "released", "smoke"])
@pytest.mark.parametrize("learner", learners.names())
def test_every_learner_can_be_made_from_every_preset(preset, learner):
    stream = streams.load("digits")
    made = learners.create(learner, stream, **learners.preset(preset, "digits", learner))
    assert made.network.head.dim == (made.settings.width if learner == "ranpac" else 64)
    for name in streams.names():
        assert learners.preset(preset, name, learner).get("network", "mlp") in models.names()  # vectors need none


def test_paper_is_the_text():
    for stream, memory in (("cifar10", 500), ("cifar100", 2000), ("cifar100-20", 2000)):
        for learner in TRAINED:
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


NO_SCHEDULE = "none"
IMAGENET = [13, 21, 27], 0.1, 1e-4
# The authors' released files: epochs, batch size, learning rate, milestones, gamma, weight decay, memory.
RELEASED = {
    ("cifar10", "icarl"): (70, 128, 0.1, [49, 63], 0.2, 2e-4, 500),
    ("cifar100", "icarl"): (70, 64, 0.1, [49, 63], 0.2, 2e-4, 2000),
    ("cifar10", "der"): (50, 32, 0.03, NO_SCHEDULE, None, 3e-4, 500),
    ("cifar100", "der"): (170, 128, 0.1, [80, 120], 0.2, 3e-4, 2000),
    ("cifar10", "bic"): (170, 128, 0.1, [80, 120, 150], 0.1, 2e-4, 500),
    ("cifar100", "bic"): (170, 128, 0.1, [60, 100, 140], 0.1, 2e-4, 2000),
    ("cifar10", "wa"): (170, 128, 0.1, [80, 120, 150], 0.1, 2e-4, 500),
    ("cifar10", "lwf"): (100, 64, 0.1, NO_SCHEDULE, None, 5e-4, None),
    ("cifar100", "lwf"): (50, 64, 0.03, [22, 35, 45], 0.1, 5e-4, None),
    **dict.fromkeys([("imagenet1k", name) for name in ("icarl", "bic", "wa")], (30, 64, 0.1, *IMAGENET, 20000)),
    ("imagenet1k", "lwf"): (30, 64, 0.1, *IMAGENET, None),
    ("imagenet1k", "der"): (30, 64, 0.03, *IMAGENET, 20000),
}


@pytest.mark.parametrize(("stream", "learner"), RELEASED)
def test_released_is_the_table(stream, learner):
    found = learners.preset("released", stream, learner)
    epochs, batch_size, lr, milestones, gamma, weight_decay, memory = RELEASED[stream, learner]
    assert (found["epochs"], found["batch_size"], found["lr"]) == (epochs, batch_size, lr)
    if milestones == NO_SCHEDULE:
        assert found["schedule"] == NO_SCHEDULE
    else:
        assert (found["schedule"], found["milestones"], found["gamma"]) == ("multistep", milestones, gamma)
    assert (found["weight_decay"], found.get("memory")) == (weight_decay, memory)
    network = "resnet50" if stream == "imagenet1k" else "resnet32_icarl"
    assert (found["momentum"], found["clip"], found["network"]) == (0.9, 1.0, network)


def test_released_is_how_the_authors_ran_it():
    def released(learner, stream="cifar10", finetune="none"):
        return learners.preset("released", stream, learner, finetune)

    assert released("icarl")["memory_unit"] == "class"
    assert (released("der")["alpha"], released("der")["beta"], released("der")["targets"]) == (0.1, 0.5, "after_task")
    assert released("der", "imagenet1k")["beta"] == 0.8
    assert released("bic")["batches"] == "halves"
    assert released("icarl", finetune="ber")["ber_pool"] == "all"
    assert "ber_pool" not in released("bic", finetune="ber")
    assert released("icarl", "cifar100", "ber")["ber_beta"] == 0.1
    for name in ("cpu", "paper", "released"):
        lwf = learners.preset(name, "cifar10", "lwf")
        assert (lwf["ce"], lwf["ce_weight"], lwf["alpha"], lwf["temperature"]) == ("new", "inverse_tasks", 1.0, 2.0)


def test_fine_tuning_adds_its_own_settings_to_the_learner_s():
    plain, tuned = (learners.preset("released", "cifar10", "icarl", finetune) for finetune in ("none", "ber"))
    assert plain.items() < tuned.items() and {key for key in tuned if key not in plain} == {"ber_pool"}


def test_own_stream_gets_the_general_table():
    found = learners.preset("cpu", "mine", "er")
    assert found["epochs"] == 10 and "network" not in found

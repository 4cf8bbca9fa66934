"""The identity of a run: one object from which folder names and labels are made, whoever wrote the run."""

import pytest

from tood import ToodError
from tood.outputs import Run, write_manifest
from tood.outputs.identity import RunIdentity, split_method
from tood.runs import RunConfig


def test_a_configuration_and_the_manifest_made_from_it_have_one_identity(tmp_path):
    config = RunConfig(stream="cifar10", learner="icarl+ber", seed=3, settings={"memory": 500}, track="memory")
    identity = config.identity
    assert (identity.learner, identity.finetune, identity.method) == ("icarl", "ber", "icarl+ber")
    assert identity.label == "icarl+ber (memory=500, track=memory)"
    assert identity.folder == config.name and config.name.startswith("cifar10-icarl+ber-cpu-s3-")
    run = write_manifest(tmp_path, [[0], [1]], far=["svhn"], **identity.to_manifest())
    assert Run(run.path).identity == identity


def test_a_run_that_someone_else_wrote_is_called_as_its_folder(tmp_path):
    run = write_manifest(tmp_path / "theirs", [[0], [1]], far=["svhn"])
    assert run.identity == RunIdentity("stream", "theirs") and run.identity.plain
    assert run.identity.label == run.learner == "theirs"


@pytest.mark.parametrize(
    ("learner", "expected"), [("wa", ("wa", "none")), ("wa+ber", ("wa", "ber")), ("a.b:C+ber", ("a.b:C", "ber"))]
)
def test_fine_tuning_is_behind_a_plus(learner, expected):
    assert split_method(learner) == expected


def test_names_of_things_of_one_s_own_are_safe_and_do_not_collide():
    mine, theirs = (RunConfig(learner=f"{package}.methods:Mine") for package in ("mine", "theirs"))
    assert mine.identity.label == theirs.identity.label == "Mine"
    assert mine.name != theirs.name and mine.name.startswith("digits-Mine-cpu-s0-")
    described = RunConfig(stream={"npz": "data/my birds.npz", "tasks": 5})
    assert described.identity.stream == "my birds" and described.name.startswith("my-birds-icarl-cpu-s0-")
    assert RunConfig(stream={"npz": "data/my birds.npz", "tasks": 2}).name != described.name
    assert "/" not in RunConfig(stream="../birds", learner="../icarl").name


@pytest.mark.parametrize(
    ("stream", "message"),
    [
        ({"folder": "a", "npz": "b"}, "one of folder, npz, huggingface, stream"),
        ({"tasks": 5}, "one of folder, npz, huggingface, stream"),
        (3, "expected a name, 'package.module:factory' or a mapping, found 3"),
    ],
)
def test_a_stream_must_be_described_in_one_way(stream, message):
    with pytest.raises(ToodError, match=message):
        RunConfig(stream=stream)


def test_settings_that_were_added_later_leave_folder_names_as_they_were():
    assert RunConfig(network="vit", stream="cifar10").name == "cifar10-icarl-cpu-s0-21e1c0"
    assert RunConfig(logits="raw").name != RunConfig().name == "digits-icarl-cpu-s0"


def test_names_may_be_a_list_or_text():
    assert RunConfig(detectors=["energy"], ood="svhn") == RunConfig(detectors=("energy",), ood=("svhn",))
    with pytest.raises(ToodError, match="detectors: expected a list of names, found 3"):
        RunConfig(detectors=3)

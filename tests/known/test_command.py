import json

import numpy as np
import pytest
from click.testing import CliRunner

from tood.commands.known import command
from tood.known import Known


@pytest.fixture
def tood_known():
    def call(*arguments):
        return CliRunner().invoke(command, [str(argument) for argument in arguments], catch_exceptions=False).output

    return call


def test_classes_in_a_file(tood_known, tmp_path):
    rng = np.random.default_rng(0)
    file, labels = tmp_path / "intents.known", np.repeat(["refund", "greeting"], 40)
    vectors = rng.normal(size=(80, 5)) + 6 * (labels == "refund")[:, None]
    np.savez(tmp_path / "both.npz", vectors=vectors, labels=labels)
    assert "80 samples added; 2 classes" in tood_known("add", file, "--in", tmp_path / "both.npz")
    np.save(tmp_path / "more.npy", rng.normal(size=(30, 5)) - 6)
    assert "30 samples added; 3 classes" in tood_known("add", file, "--in", tmp_path / "more.npy", "--name", "bye")
    np.savetxt(tmp_path / "new.csv", [[6.0] * 5, [-6.0] * 5, [90, -90, 90, -90, 90]], delimiter=",")
    rows = json.loads(tood_known("score", file, "--in", tmp_path / "new.csv", "--alpha", 0.05, "--json"))
    assert [row["class"] for row in rows][:2] == ["refund", "bye"]
    assert [row["accept"] for row in rows] == [True, True, False]
    printed = tood_known("score", file, "--in", tmp_path / "new.csv").splitlines()
    assert printed[0] == "score,class" and len(printed) == 4
    assert "2 classes" in tood_known("remove", file, "bye")
    assert json.loads(tood_known("inspect", file, "--json"))["classes"] == {"greeting": 40, "refund": 40}
    assert "40  refund" in tood_known("inspect", file)
    np.testing.assert_allclose(Known.load(file).score(vectors), Known().fit(vectors, labels).score(vectors))


def test_vectors_without_a_class_or_in_two_arrays(tood_known, tmp_path):
    np.save(tmp_path / "a.npy", np.eye(3))
    with pytest.raises(ValueError, match="expected labels beside the vectors"):
        tood_known("add", tmp_path / "f", "--in", tmp_path / "a.npy")
    np.savez(tmp_path / "a.npz", a=np.eye(3), b=np.eye(3))
    with pytest.raises(ValueError, match="expected one array with two axes, found 2"):
        tood_known("add", tmp_path / "f", "--in", tmp_path / "a.npz", "--name", "x")

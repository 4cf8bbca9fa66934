import os
from pathlib import Path

import numpy as np
import pytest
import yaml
from sklearn.datasets import load_wine
from sklearn.preprocessing import StandardScaler
from tests import processes

from tood import ToodError, streams
from tood.outputs import Run
from tood.outputs.steps import Step


@pytest.fixture
def wine(tmp_path):
    """Tabular data of scikit-learn in three classes, and a far set; one more column is constant in the first task."""
    data = load_wine()
    vectors = np.concatenate([data.data, (data.target > 0)[:, None]], axis=1)
    test = np.arange(len(vectors)) % 4 == 0
    arrays = {"train": vectors[~test], "train_labels": data.target[~test], "test": vectors[test]}
    np.savez(tmp_path / "wine.npz", **arrays, test_labels=data.target[test], ood_far_shuffled=vectors[::-1, ::-1])
    return tmp_path / "wine.npz", arrays


def test_vectors_are_standardised_by_the_first_task(wine):
    path, arrays = wine
    stream = streams.load({"npz": str(path), "tasks": [1, 2]})
    assert stream.sizes == (1, 2)
    scaler = StandardScaler().fit(arrays["train"][arrays["train_labels"] == 0])
    for source, samples in ((stream.train, arrays["train"]), (stream.test, arrays["test"])):
        np.testing.assert_allclose(source.take(np.arange(len(source))), scaler.transform(samples), rtol=1e-4, atol=1e-4)
    assert stream.ood[0].source.shape == (14,)
    np.savez(path.with_name("more.npz"), samples=arrays["test"])
    more = streams.load({"npz": str(path), "tasks": [1, 2], "ood": {"near": {"more": str(path.with_name("more.npz"))}}})
    np.testing.assert_array_equal(more.ood[1].source.take(np.arange(9)), stream.test.take(np.arange(9)))
    raw = streams.load({"npz": str(path), "tasks": 3, "standardise": False})
    np.testing.assert_allclose(raw.test.take(np.arange(3)), arrays["test"][:3], rtol=1e-6)


def test_a_run_on_vectors_with_unequal_tasks(wine, tmp_path):
    (tmp_path / "run.yaml").write_text(yaml.safe_dump({"stream": {"npz": str(wine[0])}, "preset": "smoke"}))
    options = ["--tasks", "2,1", "--learner", "er", "--detectors", "energy", "--out", tmp_path / "run"]
    done = processes.tood("run", tmp_path / "run.yaml", *options)
    assert done.returncode == 0, done.stderr
    run = Run(tmp_path / "run")
    assert [len(task) for task in run.partition] == [2, 1] and run.manifest["options"]["tasks"] == "2,1"
    assert yaml.safe_load((tmp_path / "run" / "config.yaml").read_text())["tasks"] == [2, 1]
    wrong = processes.tood("run", tmp_path / "run.yaml", "--tasks", "2,x")
    assert wrong.returncode == 1 and "sizes such as 50,10,10" in wrong.stderr


def test_closed_forms_read_the_vectors_themselves(wine, tmp_path):
    """A random hidden layer in between would lose most of what a linear method can know."""
    (tmp_path / "run.yaml").write_text(yaml.safe_dump({"stream": {"npz": str(wine[0]), "tasks": 3}, "learner": "slda"}))
    done = processes.tood("run", tmp_path / "run.yaml", "--detectors", "energy", "--out", tmp_path / "run", "--json")
    assert done.returncode == 0, done.stderr
    outputs = Step(Run(tmp_path / "run"), 2).test
    assert outputs.features.shape[1] == 14
    assert (outputs.logits.argmax(axis=1) == outputs.labels).mean() > 0.95


def test_clinc150_needs_its_file_unchanged(tmp_path):
    with pytest.raises(ToodError, match=r"has no clinc150-minilm.npz; set TOOD_DATA"):
        streams.load("clinc150", root=tmp_path)
    np.savez(tmp_path / "clinc150-minilm.npz", train_minilm=np.eye(3))
    with pytest.raises(ToodError, match="expected SHA-256 150dff"):
        streams.load("clinc150", root=tmp_path)


@pytest.mark.data
@pytest.mark.skipif(not os.environ.get("TOOD_DATA"), reason="needs CLINC150 in the folder named by TOOD_DATA")
def test_clinc150():
    stream = streams.load("clinc150", root=Path(os.environ["TOOD_DATA"]), tasks=[50, *[10] * 10])
    assert stream.sizes[:2] == (50, 10) and len(stream.train) == 15000 and len(stream.ood[0].source) == 1000
    first = stream.train.take(stream.train_rows(0))
    spread = first.std(axis=0)
    assert ((spread < 1e-5) | (abs(spread - 1) < 1e-3)).all() and abs(first.mean(axis=0)).max() < 1e-3

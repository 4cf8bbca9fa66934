import numpy as np
import pytest
from sklearn.datasets import load_digits

from tood import ToodError, detectors
from tood.detectors import Outputs
from tood.evaluation import load_metrics
from tood.evaluation.measure import default_scorers
from tood.evaluation.score import Scorer, fit_and_score
from tood.outputs.steps import Step
from tood.runs import RunConfig, run
from tood.streams import Stream
from tood.streams.bundled import standardised

digits = load_digits()
known = digits.target < 8


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A perceptron trained on vectors in four tasks; two digits are unknown."""
    test = np.arange(len(known)) % 3 == 0
    sets = [(digits.data[rows].astype(np.float32), digits.target[rows]) for rows in (known & ~test, known & test)]
    ood = {"far": {"others": digits.data[~known].astype(np.float32)}}
    stream = standardised(Stream.from_arrays(*sets[0], *sets[1], tasks=4, ood=ood, name="vectors"))
    config = RunConfig(learner="er", preset="frozen", settings={"epochs": 1}, detectors=("energy", "rmds", "vim"))
    return run(config, tmp_path_factory.mktemp("runs") / "run", stream, say=lambda line: None), sets, ood


def test_scores_on_backbone_features_are_those_of_a_fit_on_the_vectors(trained):
    made, sets, ood = trained
    step = Step(made, 1).using(features="backbone")
    places = np.isin(sets[1][1], [0, 1, 2, 3])
    order = np.argsort(sets[1][1][places] // 2, kind="stable")  # task by task
    np.testing.assert_array_equal(step.test.features, sets[1][0][places][order])
    train = step.calibration().features
    assert np.isin(train, sets[0][0]).all() and len(train) == len(step.calibration().labels)
    fitted = detectors.create("rmds").fit(step.calibration())
    zeros = np.zeros((len(ood["far"]["others"]), 4), np.float32)
    scored = fit_and_score(Step(made, 1), Scorer("rmds", features="backbone"))
    np.testing.assert_allclose(scored.ood["others"], fitted.score(Outputs(zeros, ood["far"]["others"])), rtol=1e-5)
    assert not np.allclose(scored.test, fit_and_score(Step(made, 1), Scorer("rmds")).test)


def test_metrics_have_both_kinds_and_the_head_belongs_to_the_trained_one(trained):
    made = trained[0]
    rows = load_metrics(made.path).group_by(["detector", "settings"]).aggregate([]).to_pylist()
    found = {(row["detector"], row["settings"]) for row in rows if row["detector"]}
    assert found == {("energy", ""), ("rmds", ""), ("vim", ""), ("rmds", '{"features": "backbone"}')}
    on_backbone = {s.detector for s in default_scorers(made)[0] if s.features == "backbone"}
    assert {"rmds", "ananc", "mds", "tood_joint"} <= on_backbone and not on_backbone & {"vim", "energy", "react"}


def test_a_damaged_file_is_named(trained, tmp_path):
    file = trained[0].path / "backbone" / "test.npy"
    whole = file.read_bytes()
    try:
        for content in (whole[:-9], whole[:60], b""):
            file.write_bytes(content)
            with pytest.raises(ToodError, match=r"test\.npy"):
                _ = Step(trained[0], 0).using(features="backbone").test
    finally:
        file.write_bytes(whole)

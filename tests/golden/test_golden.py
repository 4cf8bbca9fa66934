"""Files written by earlier versions give the scores and decisions of the day they were written, on every Python."""

from pathlib import Path

import numpy as np
import pytest

from tood import TOOD, Known, ToodError, detectors
from tood.decision import Conformal, PredictionSets
from tood.deploy import DriftMonitor, LiveTOOD
from tood.outputs import Outputs
from tood.storage.files import read_tensors, write_tensors

FORMATS = sorted(path for path in Path(__file__).parent.iterdir() if path.name.startswith("format-"))


@pytest.fixture(params=FORMATS, ids=lambda folder: folder.name)
def golden(request):
    with np.load(request.param / "expected.npz") as archive:
        return request.param, dict(archive)


def test_known_classes_score_as_then():
    folder = Path(__file__).parent / "known-1"
    expected = np.load(folder / "expected.npz")
    known = Known.load(folder / "three.known")
    np.testing.assert_allclose(known.score(expected["inputs"]), expected["scores"], rtol=1e-9)
    assert (known.predict(expected["inputs"]) == expected["names"]).all()
    with pytest.warns(UserWarning, match="fewer than 9 samples"):
        assert (known.decide(expected["inputs"], 0.1) == expected["accept"]).all()
    assert known.metadata_ == {"encoder": "golden"}
    np.testing.assert_allclose(known.remove("b").score(expected["inputs"]), expected["removed"], rtol=1e-9)


def test_a_calibrator_scores_as_then(golden):
    folder, expected = golden
    cal = TOOD.load(folder / "calibrator.safetensors")
    np.testing.assert_allclose(cal.score(expected["logits"]), expected["calibrator"], rtol=1e-12)
    np.testing.assert_array_equal(cal.assign(expected["logits"]), expected["task"])
    assert cal.metadata_ == {"model": "golden", "parent": "none"}


@pytest.mark.parametrize("name", ["conformal", "cross"])
def test_decisions_are_those_of_then(golden, name):
    folder, expected = golden
    decision = Conformal.load(folder / f"{name}.safetensors").decide(expected["logits"], alpha=0.1)
    np.testing.assert_array_equal(decision.accept, expected[name])
    np.testing.assert_allclose(decision.p_value, expected[f"{name}.p"], rtol=1e-12)


def test_sets_are_those_of_then(golden):
    folder, expected = golden
    sets = PredictionSets.load(folder / "sets.safetensors").predict(expected["logits"], alpha=0.1)
    np.testing.assert_array_equal(sets, expected["sets"])


def test_a_monitor_goes_on_as_then(golden):
    folder, expected = golden
    monitor = DriftMonitor.load(folder / "monitor.safetensors")
    assert [monitor.report().rejected, monitor.update(expected["logits"][60:]).report().rejected] == expected[
        "monitor"
    ].tolist()


def test_a_live_calibrator_scores_as_then(golden):
    folder, expected = golden
    cal = LiveTOOD.load(folder / "live.safetensors").calibrator("mean_shift")
    np.testing.assert_allclose(cal.score(expected["logits"]), expected["live"], rtol=1e-12)


@pytest.mark.parametrize("name", ["tood", "tood_joint", "typicality", "knn"])
def test_a_detector_scores_as_then(golden, name):
    folder, expected = golden
    detector = detectors.Detector.load(folder / f"{name}.safetensors")
    scores = detector.score(Outputs(expected["logits"], features=expected["features"]))
    np.testing.assert_allclose(scores, expected[name], rtol=1e-9)


def test_the_onnx_graph_decides_as_then(golden):
    onnxruntime = pytest.importorskip("onnxruntime")
    folder, expected = golden
    session = onnxruntime.InferenceSession(folder / "scorer.onnx")
    score, task, accept = session.run(None, {"logits": expected["logits"].astype(np.float32)})
    np.testing.assert_allclose(score, expected["calibrator"], rtol=1e-4, atol=1e-4)
    np.testing.assert_array_equal(task, expected["task"])
    np.testing.assert_array_equal(accept, expected["conformal"])
    kept = session.get_modelmeta().custom_metadata_map
    assert "golden" in kept["tood.metadata"] and {"tood.rule", "tood.tood", "tood.created"} <= {*kept}


def test_a_file_whose_scores_moved_is_refused(golden, tmp_path):
    folder, _ = golden
    tensors, metadata = read_tensors(folder / "calibrator.safetensors", "tood-calibrator")
    for change in ({"canary.scores": tensors["canary.scores"] + 1e-5}, {"location": tensors["location"] + 1e-4}):
        write_tensors(tmp_path / "moved", "tood-calibrator", {**tensors, **change}, metadata)
        with pytest.raises(ToodError, match="its scores have moved"):
            TOOD.load(tmp_path / "moved")
    del metadata["rule"]
    write_tensors(tmp_path / "old", "tood-calibrator", tensors, metadata)
    with pytest.raises(ToodError, match="tood calibrate"):
        TOOD.load(tmp_path / "old")

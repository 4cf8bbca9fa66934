"""The TOOD detectors are the calibrator, and the explicit search is what it says."""

from __future__ import annotations

import numpy as np
import pytest

from tood import TOOD, detectors
from tood.detectors import Detector, Outputs
from tood.errors import ToodError
from tood.metrics import auroc

PARTITION = [[0, 3], [1, 2], [4]]


def outputs(rows, seed, scale=1.0):
    rng = np.random.default_rng(seed)
    return Outputs(logits=scale * rng.normal(size=(rows, 5)), labels=np.arange(rows) % 5)


@pytest.mark.parametrize(
    ("name", "variant", "margin"),
    [
        ("tood_mean_shift", "mean_shift", 0.5),
        ("tood_robust_anchor", "robust_anchor", 0.5),
        ("temperature", "temperature", 0.0),
    ],
)
def test_tood_detectors_are_the_calibrator(name, variant, margin, tmp_path):
    calibration, test = outputs(100, 0), outputs(50, 1)
    expected = TOOD(PARTITION, variant=variant, margin=margin).fit(calibration.logits, calibration.labels)
    detector = detectors.create(name).fit([calibration[:30], calibration[30:]], partition=PARTITION)
    np.testing.assert_array_equal(detector.score(test), expected.score(test.logits))
    detector.set_params(margin=2.0)
    np.testing.assert_array_equal(detector.score(test), expected.set_params(margin=2.0).score(test.logits))
    detector.save(tmp_path / "detector")
    np.testing.assert_array_equal(Detector.load(tmp_path / "detector").score(test), expected.score(test.logits))


def test_tood_detectors_need_a_partition_and_a_sample_of_every_task():
    few = Outputs(outputs(10, 0).logits, np.zeros((10, 2)), np.arange(10) % 5)
    for name in ("tood_robust_anchor", "tood_prototype"):
        with pytest.raises(ToodError, match=f"partition: {name} needs the logit columns of each task"):
            detectors.create(name).fit(few)
    calibration = outputs(100, 0)
    with pytest.raises(ToodError, match="no calibration sample for task 2"):
        detectors.create("tood_mean_shift").fit(calibration[calibration.labels < 4], partition=PARTITION)
    with pytest.raises(ToodError, match="margin"):
        detectors.create("tood_mean_shift", margin=-1)


@pytest.mark.filterwarnings("ignore:knn. the bank has 20 samples")
def test_search_finds_the_best_of_the_grid():
    rng = np.random.default_rng(0)
    fit = Outputs(np.zeros((300, 2)), rng.normal(size=(300, 4)))
    inside, outside = (Outputs(np.zeros((80, 2)), rng.normal(size=(80, 4)) + shift) for shift in (0, [2, 0, 0, 0]))
    start = detectors.create("knn", size=100)
    found = detectors.search(start, inside, outside, fit=fit, grid={"k": [1, 5, 60], "size": [100, 20]})
    expected = {}
    for size in (100, 20):
        for k in (1, 5, 60):
            detector = detectors.create("knn", k=k, size=size).fit(fit)
            expected[k, size] = auroc(detector.score(inside), detector.score(outside))
    assert {(trial["k"], trial["size"]): value for trial, value in found.trials} == expected
    assert found.auroc == max(expected.values())
    assert expected[found.detector.k, found.detector.size] == found.auroc
    assert auroc(found.detector.score(inside), found.detector.score(outside)) == found.auroc
    assert start.get_params() == {"k": 50, "size": 100, "seed": 0}


def test_search_uses_the_declared_grid_and_refuses_unknown_names():
    inside, outside = outputs(40, 0, scale=3.0), outputs(40, 1)
    found = detectors.search(detectors.create("gen"), inside, outside)
    assert len(found.trials) == 7 * 6
    with pytest.raises(ToodError, match="unknown hyper-parameter of gen 'gama'; did you mean 'gamma'"):
        detectors.search(detectors.create("gen"), inside, outside, grid={"gama": [1]})
    with pytest.raises(ToodError, match="grid"):
        detectors.search(detectors.create("gen"), inside, outside, grid={"gamma": []})


def test_files_that_are_not_detectors(tmp_path):
    with pytest.raises(ToodError, match="no such file"):
        Detector.load(tmp_path / "absent")
    (tmp_path / "rubbish").write_bytes(b"rubbish")
    with pytest.raises(ToodError, match="rubbish: cannot be read"):
        Detector.load(tmp_path / "rubbish")
    TOOD(PARTITION).fit(outputs(100, 0).logits, outputs(100, 0).labels).save(tmp_path / "calibrator")
    with pytest.raises(ToodError, match="expected a tood-detector file"):
        Detector.load(tmp_path / "calibrator")


def test_unknown_detectors_offer_the_nearest():
    with pytest.raises(ToodError, match="did you mean 'nnguide'"):
        detectors.create("nnguid")

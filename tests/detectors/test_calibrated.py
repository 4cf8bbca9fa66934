"""The TOOD detectors are the calibrator."""

from __future__ import annotations

import numpy as np
import pytest

from tood import TOOD, detectors
from tood.detectors import Detector, Outputs
from tood.errors import ToodError

PARTITION = [[0, 3], [1, 2], [4]]


def outputs(rows, seed, scale=1.0):
    rng = np.random.default_rng(seed)
    return Outputs(logits=scale * rng.normal(size=(rows, 5)), labels=np.arange(rows) % 5)


@pytest.mark.parametrize(
    ("name", "variant", "margin"),
    [
        ("tood_mean_shift", "mean_shift", 0.5),
        ("tood_robust_anchor", "robust_anchor", 0.5),
        ("tood", "background", 0.5),
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

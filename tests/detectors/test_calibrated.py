"""The TOOD detectors are the calibrator."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.spatial.distance import cdist
from tests.detectors import test_typicality
from tests.detectors.test_typicality import make

from tood import TOOD, detectors, energy
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


TASKS = test_typicality.PARTITION


def by_hand(fit, test, variant, margin):
    """The definition, sample by sample."""
    cal = TOOD(TASKS, variant, margin).fit(fit.logits, fit.labels)
    classes = np.unique(fit.labels)
    means = [fit.features[fit.labels == c].mean(axis=0) for c in classes]
    nearest = (1 - cdist(test.features, means, "cosine")).max(axis=1)
    known, own = cal.score(fit.logits), (1 - cdist(fit.features, means, "cosine")).max(axis=1)
    return (cal.score(test.logits) - known.mean()) / known.std() + 0.5 * (nearest - own.mean()) / own.std()


@pytest.mark.parametrize(("variant", "margin"), [("background", 0.5), ("mean_shift", 0.0)])
def test_joint_is_its_definition(variant, margin):
    fit, test = make([6, 7, 8, 9, 5, 6])
    detector = detectors.create("tood_joint", variant=variant, margin=margin).fit(fit, partition=TASKS)
    np.testing.assert_allclose(detector.score(test), by_hand(fit, test, variant, margin), rtol=1e-7, atol=1e-9)


def informed(feature_noise, logit_noise, samples=15):
    """Calibration samples, test samples and unknown classes; noise hides classes in features or in logits."""
    rng = np.random.default_rng(0)
    centres = 4 * rng.normal(size=(9, 10))

    def draw(labels):
        features = centres[labels] + feature_noise * rng.normal(size=(len(labels), 10))
        logits = logit_noise * rng.normal(size=(len(labels), 6)) + 5 * np.eye(9)[labels][:, :6]
        return Outputs(logits, features, labels)

    return draw(np.repeat(np.arange(6), samples)), draw(np.repeat(np.arange(6), 50)), draw(np.repeat([6, 7, 8], 100))


def test_features_help_where_logits_are_poor():
    fit, test, unknown = informed(feature_noise=1.0, logit_noise=4.0)
    detector = detectors.create("tood_joint").fit(fit, partition=TASKS)
    better, plain = (auroc(s(test), s(unknown)) for s in (detector.score, lambda outputs: energy(outputs.logits)))
    assert better > plain + 0.1


def test_one_sample_per_class_and_equal_features_are_fine():
    fit, test = make([1, 1, 1, 1, 1, 1])
    assert np.isfinite(detectors.create("tood_joint").fit(fit, partition=TASKS).score(test)).all()
    flat = Outputs(fit.logits, np.ones_like(fit.features), fit.labels)
    assert np.isfinite(detectors.create("tood_joint").fit(flat, partition=TASKS).score(test)).all()

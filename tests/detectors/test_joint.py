import numpy as np
import pytest
from scipy.spatial.distance import cdist
from tests.detectors.test_typicality import PARTITION, make

from tood import TOOD, detectors, energy
from tood.detectors import Detector, Outputs
from tood.metrics import auroc


def by_hand(fit, test, variant, margin):
    """The definition, sample by sample."""
    cal = TOOD(PARTITION, variant, margin).fit(fit.logits, fit.labels)
    classes = np.unique(fit.labels)
    means = [fit.features[fit.labels == c].mean(axis=0) for c in classes]
    nearest = (1 - cdist(test.features, means, "cosine")).max(axis=1)
    known, own = cal.score(fit.logits), (1 - cdist(fit.features, means, "cosine")).max(axis=1)
    return (cal.score(test.logits) - known.mean()) / known.std() + 0.5 * (nearest - own.mean()) / own.std()


@pytest.mark.parametrize(("variant", "margin"), [("background", 0.5), ("mean_shift", 0.0)])
def test_joint_is_its_definition(variant, margin):
    fit, test = make([6, 7, 8, 9, 5, 6])
    detector = detectors.create("tood_joint", variant=variant, margin=margin).fit(fit, partition=PARTITION)
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
    detector = detectors.create("tood_joint").fit(fit, partition=PARTITION)
    better, plain = (auroc(s(test), s(unknown)) for s in (detector.score, lambda outputs: energy(outputs.logits)))
    assert better > plain + 0.1


def test_without_features_it_is_tood(tmp_path):
    fit, test = make([6, 7, 8, 9, 5, 6])
    with pytest.warns(UserWarning, match="no features"):
        detector = detectors.create("tood_joint").fit(Outputs(fit.logits, labels=fit.labels), partition=PARTITION)
    expected = TOOD(PARTITION).fit(fit.logits, fit.labels).score(test.logits)
    np.testing.assert_allclose(detector.score(Outputs(test.logits)), expected, rtol=1e-12)
    detector.save(tmp_path / "joint")
    np.testing.assert_array_equal(Detector.load(tmp_path / "joint").score(Outputs(test.logits)), detector.score(test))


def test_one_sample_per_class_and_equal_features_are_fine():
    fit, test = make([1, 1, 1, 1, 1, 1])
    assert np.isfinite(detectors.create("tood_joint").fit(fit, partition=PARTITION).score(test)).all()
    flat = Outputs(fit.logits, np.ones_like(fit.features), fit.labels)
    assert np.isfinite(detectors.create("tood_joint").fit(flat, partition=PARTITION).score(test)).all()

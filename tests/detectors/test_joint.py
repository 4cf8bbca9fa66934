from __future__ import annotations

import numpy as np
import pytest
from scipy.spatial.distance import cdist
from scipy.stats import ks_2samp, norm, spearmanr
from sklearn.metrics import roc_auc_score
from tests.detectors.test_typicality import PARTITION, directions, make, pooled

from tood import TOOD, detectors
from tood.detectors import Detector, Outputs, joint
from tood.detectors.joint import LARGEST_WEIGHT, mixture, normalised_score, spread, weight_of_features
from tood.errors import ToodError
from tood.statistics import energy_statistics


def standardised(values, by):
    return (values - by.mean()) / by.std()


def own_distances(fit):
    """Squared distance of each sample to the nearest class, by a fit without it; the shrinkage is that of all."""
    shares = detectors.create("typicality").fit(fit)._classes().shrunk("oas")
    found = []
    for i in range(len(fit.labels)):
        z, labels = np.delete(directions(fit), i, axis=0), np.delete(fit.labels, i)
        means = np.stack([z[labels == c].mean(axis=0) for c in range(6)])
        residuals = z - means[labels]
        weight = shares[1]
        ridge = np.linalg.inv(shares[0] @ shares[0].T) - weight * _scatter(directions(fit), fit.labels)
        inverse = np.linalg.inv(weight * residuals.T @ residuals + ridge)
        found.append(cdist(directions(fit)[i : i + 1], means, "mahalanobis", VI=inverse).min() ** 2)
    return np.array(found)


def _scatter(z, labels):
    residuals = z - np.stack([z[labels == c].mean(axis=0) for c in range(6)])[labels]
    return residuals.T @ residuals


@pytest.mark.parametrize("variant", ["shrinkage", "mean_shift"])
@pytest.mark.parametrize("weight", [0.0, 0.7])
def test_joint_is_its_definition(variant, weight):
    fit, test = make([6, 7, 8, 9, 5, 6])
    means, covariance = pooled(directions(fit), fit.labels)
    squared = cdist(directions(test), means, "mahalanobis", VI=np.linalg.inv(covariance)).min(axis=1) ** 2
    cal = TOOD(PARTITION, variant).fit(fit.logits, fit.labels)
    logits = standardised(cal.score(test.logits), cal.score(fit.logits))
    expected = logits - weight * standardised(squared, own_distances(fit))
    detector = detectors.create("tood_joint", variant=variant, weight=weight).fit(fit, partition=PARTITION)
    np.testing.assert_allclose(detector.score(test), expected, rtol=1e-7, atol=1e-9)
    assert detector.feature_weight_ == weight


def informed(feature_noise, logit_noise, seed=0, dimensions=10, samples=15):
    """Calibration samples, test samples and unknown classes; noise hides classes in features or in logits."""
    rng = np.random.default_rng(seed)
    centres = 4 * rng.normal(size=(9, dimensions))

    def draw(labels):
        features = centres[labels] + feature_noise * rng.normal(size=(len(labels), dimensions))
        logits = logit_noise * rng.normal(size=(len(labels), 6)) + 5 * np.eye(9)[labels][:, :6]
        return Outputs(logits, features, labels)

    return draw(np.repeat(np.arange(6), samples)), draw(np.repeat(np.arange(6), 50)), draw(np.repeat([6, 7, 8], 100))


def test_features_count_only_if_they_tell_pseudo_unknowns_apart():
    fit, test, unknown = informed(feature_noise=60.0, logit_noise=1.0)  # features are noise
    detector = detectors.create("tood_joint").fit(fit, partition=PARTITION)
    assert detector.feature_weight_ < 0.1 * LARGEST_WEIGHT
    fit, test, unknown = informed(feature_noise=1.0, logit_noise=4.0)  # logits are poor
    detector = detectors.create("tood_joint").fit(fit, partition=PARTITION)
    assert detector.feature_weight_ == LARGEST_WEIGHT
    cal = TOOD(PARTITION).fit(fit.logits, fit.labels)
    truth = np.repeat([1, 0], [len(test.labels), len(unknown.labels)])
    found = [
        roc_auc_score(truth, np.concatenate([score(test), score(unknown)]))
        for score in (detector.score, lambda outputs: cal.score(outputs.logits))
    ]
    assert found[0] > found[1] + 0.05


def test_one_task_has_no_pseudo_unknowns_and_ranks_as_energy():
    fit, test = make([8] * 4)
    detector = detectors.create("tood_joint").fit(fit, partition=[[0, 1, 2, 3]])
    assert detector.feature_weight_ == 0
    order = detectors.create("energy").fit(fit).score(test).argsort()
    np.testing.assert_array_equal(detector.score(test).argsort(), order)


@pytest.mark.parametrize("variant", ["shrinkage", "robust_anchor"])
def test_joint_from_logits_alone_ranks_as_tood_and_says_so(variant, tmp_path):
    fit, test = make([10] * 6)
    with pytest.warns(UserWarning, match="no features"):
        detector = detectors.create("tood_joint", variant=variant).fit(
            Outputs(fit.logits, None, fit.labels), partition=PARTITION
        )
    tood = TOOD(PARTITION, variant=variant).fit(fit.logits, fit.labels).score(test.logits)
    for outputs in (test, Outputs(test.logits)):
        slope, offset = np.polyfit(detector.score(outputs), tood, 1)
        assert slope > 0
        np.testing.assert_allclose(slope * detector.score(outputs) + offset, tood, rtol=1e-8)
    detector.save(tmp_path / "joint.safetensors")
    np.testing.assert_array_equal(Detector.load(tmp_path / "joint.safetensors").score(test), detector.score(test))


def test_joint_wants_the_features_it_was_fitted_with():
    fit, test = make([10] * 6)
    detector = detectors.create("tood_joint").fit(fit, partition=PARTITION)
    with pytest.raises(ToodError, match="features: expected 8 dimensions"):
        detector.score(Outputs(test.logits))
    with pytest.raises(ToodError, match="chunks disagree"):
        detectors.create("tood_joint").fit([fit, Outputs(fit.logits, None, fit.labels)], partition=PARTITION)


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("counts", [[1] * 6, [1, 1, 5, 5, 5, 5], [2] * 6])
@pytest.mark.parametrize("weight", ["auto", 0.5])
def test_joint_with_hardly_any_samples_is_finite(counts, weight):
    fit, test = make(counts, dimensions=40)
    detector = detectors.create("tood_joint", weight=weight).fit(fit, partition=PARTITION)
    assert np.isfinite(detector.score(test)).all()
    assert np.isfinite(detector.score(Outputs(test.logits, np.zeros_like(test.features)))).all()


@pytest.mark.parametrize("weight", [-1, "most", None])
def test_weight_out_of_range(weight):
    with pytest.raises(ToodError, match="weight"):
        detectors.create("tood_joint", weight=weight)


def test_joint_with_features_survives_saving(tmp_path):
    fit, test = make([10] * 6)
    detector = detectors.create("tood_joint", weight=0.4).fit(fit, partition=PARTITION)
    detector.save(tmp_path / "joint.safetensors")
    loaded = Detector.load(tmp_path / "joint.safetensors")
    np.testing.assert_array_equal(loaded.score(test), detector.score(test))
    assert loaded.feature_weight_ == 0.4


@pytest.mark.parametrize("tasks", [2, 3, 5])
def test_the_weight_is_that_of_fits_without_each_task(tasks):
    """The statistics without a task are subtracted from those of all; here each is computed anew."""
    rng = np.random.default_rng(tasks)
    owners = np.repeat(np.arange(tasks), 12)
    energies = rng.normal(size=(len(owners), tasks)) + 2 * np.eye(tasks)[owners] - np.arange(tasks)
    squared = rng.chisquare(4, size=(len(owners), tasks)) * (1 - 0.4 * np.eye(tasks)[owners])
    known, near = [], []
    for unknown in range(tasks):
        kept, rows = np.arange(tasks) != unknown, owners != unknown
        places = owners[rows] - (owners[rows] > unknown)
        scores = normalised_score(
            energies[:, kept], energy_statistics(energies[rows][:, kept], places), "shrinkage", 0.5
        )
        for figures, values in ((known, scores), (near, -squared[:, kept].min(axis=1))):
            each = [
                roc_auc_score(np.r_[np.ones(12), np.zeros(12)], np.r_[values[owners == t], values[~rows]])
                for t in range(tasks)
                if t != unknown
            ]
            figures.append(np.mean(each))
    ratio = norm.ppf(np.mean(near)) / norm.ppf(np.mean(known))
    assert 0 < ratio < 1
    found = weight_of_features(energies, squared, owners, "shrinkage", 0.5)
    assert found == pytest.approx(LARGEST_WEIGHT * ratio, rel=1e-9)


@pytest.mark.parametrize("seed", range(3))
def test_a_sample_of_many_calibration_samples_gives_about_the_weight_of_all(seed, monkeypatch):
    fit, test, _ = informed(feature_noise=30.0, logit_noise=2.0, seed=seed, samples=1500)
    sampled = detectors.create("tood_joint").fit(fit, partition=PARTITION)
    monkeypatch.setattr(joint, "SAMPLE", len(fit.labels))
    every = detectors.create("tood_joint").fit(fit, partition=PARTITION)
    assert 0 < every.feature_weight_ < LARGEST_WEIGHT
    assert sampled.feature_weight_ == pytest.approx(every.feature_weight_, abs=0.02)
    assert spearmanr(sampled.score(test), every.score(test)).statistic > 0.999
    np.testing.assert_array_equal(sampled.statistics_, every.statistics_)


def test_the_sample_does_not_depend_on_the_order_of_rows_or_how_they_are_split():
    fit, test, _ = informed(feature_noise=30.0, logit_noise=2.0, samples=1500)
    fit = Outputs(fit.logits.astype(np.float16), fit.features, fit.labels)  # many samples have equal logits
    expected = detectors.create("tood_joint").fit(fit, partition=PARTITION).score(test)
    rows = np.random.default_rng(1).permutation(len(fit.labels))
    chunks = [fit[part] for part in np.array_split(rows, 7)]
    found = detectors.create("tood_joint").fit(chunks, partition=PARTITION).score(test)
    np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-9)


def test_a_sample_has_its_tasks_distribution_and_a_small_task_keeps_enough():
    rng = np.random.default_rng(0)
    tasks = rng.permutation(np.repeat([0, 1, 2, 3], [8000, 2000, 300, 40]))
    values = rng.exponential(size=len(tasks))
    ties = np.zeros(len(tasks))
    chosen = spread(values, ties, tasks, 1034)  # a tenth
    np.testing.assert_array_equal(np.bincount(tasks[chosen]), [800, 200, 100, 40])
    for t in range(4):
        kept, every = values[chosen & (tasks == t)], values[tasks == t]
        assert ks_2samp(kept, every).statistic < 1 / len(kept)
    assert spread(values, ties, tasks, len(tasks)).all()


def test_a_spread_that_is_rounding_counts_as_none():
    rng = np.random.default_rng(0)
    for value in (np.full(10, 0.3), np.full(10, 3.3) + 1e-15 * rng.normal(size=10)):
        assert mixture(rng.normal(size=10), value, 0.5).squared == 0
        assert mixture(value, rng.normal(size=10), 0.5).logits == 1

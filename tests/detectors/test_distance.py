"""Distances against scikit-learn's covariances and SciPy's distances."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.linalg import pinvh
from scipy.spatial.distance import cdist
from scipy.special import logsumexp
from scipy.stats import median_abs_deviation, spearmanr
from sklearn.covariance import EmpiricalCovariance

from tood import detectors
from tood.detectors import Head, Outputs

C, D, N = 5, 12, 400
PARTITION = [[0, 3], [1], [4, 2]]


def blobs(rows, seed, mean=0.0, dims=D):
    rng = np.random.default_rng(seed)
    mix = np.random.default_rng(99).normal(size=(dims, dims)) * np.geomspace(1, 1e-2, dims)
    labels = np.arange(rows) % C
    return labels[:, None] * 0.5 + rng.normal(size=(rows, dims)) @ mix + mean, labels


def fitted(name, features, labels, **parameters):
    logits = np.zeros((len(features), C))
    return detectors.create(name, **parameters).fit(Outputs(logits, features, labels), partition=PARTITION)


def scores(detector, features):
    return detector.score(Outputs(np.zeros((len(features), C), dtype=features.dtype), features))


def gaussian(features, labels, classes=range(C)):
    means = np.stack([features[labels == c].mean(axis=0) for c in classes])
    centred = (
        features
        - np.stack([features[labels == c].mean(axis=0) for c in range(C) if (labels == c).any()])[
            np.searchsorted(np.unique(labels), labels)
        ]
    )
    return means, EmpiricalCovariance().fit(centred).precision_


@pytest.mark.parametrize("mean", [0.0, 1e4])
def test_mds_and_rmds_are_mahalanobis_distances(mean):
    features, labels = blobs(N, 0, mean)
    test, _ = blobs(100, 1, mean)
    means, precision = gaussian(features, labels)
    distances = cdist(test, means, "mahalanobis", VI=precision) ** 2
    background = EmpiricalCovariance().fit(features).mahalanobis(test)
    tolerance = 1e-8 if mean == 0 else 1e-5  # scikit-learn's own rounding, with such a mean
    np.testing.assert_allclose(scores(fitted("mds", features, labels), test), -distances.min(axis=1), rtol=tolerance)
    found = scores(fitted("rmds", features, labels), test)
    np.testing.assert_allclose(found, background - distances.min(axis=1), rtol=tolerance, atol=tolerance * 10)


def test_classes_without_samples_take_no_part():
    features, labels = blobs(N, 0)
    keep = np.isin(labels, [1, 4])
    features, labels = features[keep], labels[keep]
    means, precision = gaussian(features, labels, classes=[1, 4])
    test, _ = blobs(50, 1)
    expected = -(cdist(test, means, "mahalanobis", VI=precision) ** 2).min(axis=1)
    np.testing.assert_allclose(scores(fitted("mds", features, labels), test), expected, rtol=1e-8)
    np.testing.assert_allclose(
        scores(fitted("prototype", features, labels, normalize=False), test),
        -cdist(test, means).min(axis=1),
        rtol=1e-10,
    )


def test_mds_inverts_a_singular_covariance_as_scipy_does():
    features, labels = blobs(N, 0)
    features = np.hstack([features, np.full((N, 2), 3.0), features[:, :1] * 2])  # two dead units and a copy
    test = np.hstack([blobs(60, 1)[0], np.full((60, 2), 3.0), np.zeros((60, 1))])
    centred = features - np.stack([features[labels == c].mean(axis=0) for c in range(C)])[labels]
    precision = pinvh(centred.T @ centred / N)
    means = np.stack([features[labels == c].mean(axis=0) for c in range(C)])
    expected = [-min((z - m) @ precision @ (z - m) for m in means) for z in test]
    np.testing.assert_allclose(scores(fitted("mds", features, labels), test), expected, rtol=1e-6)


@pytest.mark.parametrize("normalize", [False, True])
def test_prototypes_are_their_definition(normalize):
    def unit(x):
        return x / np.linalg.norm(x, axis=1, keepdims=True) if normalize else x

    (features, labels), test = blobs(N, 0), unit(blobs(80, 1)[0])
    means = unit(np.stack([unit(features)[labels == c].mean(axis=0) for c in range(C)]))
    channels = []
    for task in PARTITION:
        mine = -cdist(unit(features), means[task]).min(axis=1)[np.isin(labels, task)]
        median, mad = np.median(mine), median_abs_deviation(mine, scale="normal")
        channels.append((-cdist(test, means[task]).min(axis=1) - median) / mad)
    channels = np.sort(channels, axis=0)
    found = [
        scores(
            fitted(name, features, labels, **settings, **({} if normalize else {"normalize": False})), blobs(80, 1)[0]
        )
        for name, settings in (("prototype", {}), ("tood_prototype", {}), ("tood_prototype", {"margin": 0.5}))
    ]
    np.testing.assert_allclose(found[0], -cdist(test, means).min(axis=1), rtol=1e-8)
    np.testing.assert_allclose(found[1], channels[-1], rtol=1e-8)
    np.testing.assert_allclose(found[2], channels[-1] + 0.5 * (channels[-1] - channels[-2]), rtol=1e-8)


def test_tood_prototype_without_spread_says_which_task():
    features, labels = blobs(N, 0)
    features[labels == 1] = 7.0
    with pytest.warns(UserWarning, match="the distances of task 1 have no spread"):
        detector = fitted("tood_prototype", features, labels)
    assert np.isfinite(scores(detector, features)).all()


def test_vim_with_samples_that_span_no_more_than_its_subspace_is_energy():
    weight, bias, features, test = vim_data()
    with pytest.warns(UserWarning, match="there is no residual; this is plain energy"):
        detector = detectors.create("vim", dim=D - 2).fit(
            Outputs(features[:4] @ weight.T + bias, features[:4]), head=Head(weight, bias)
        )
    logits = test @ weight.T + bias
    np.testing.assert_allclose(detector.score(Outputs(logits, test)), logsumexp(logits, axis=1), rtol=1e-12)


def vim_data(seed=0, dims=D):
    rng = np.random.default_rng(seed)
    weight, bias = rng.normal(size=(C, dims)), rng.normal(size=C)
    features, test = blobs(N, 0, dims=dims)[0], blobs(70, 1, dims=dims)[0]
    return weight, bias, features, test


@pytest.mark.parametrize("dim", [0, 1, 6, 11])
def test_vim_is_its_definition(dim):
    weight, bias, features, test = vim_data()
    origin = -np.linalg.pinv(weight) @ bias
    values, vectors = np.linalg.eigh(EmpiricalCovariance(assume_centered=True).fit(features - origin).covariance_)
    residual = vectors[:, np.argsort(-values)[dim:]]
    logits = features @ weight.T + bias
    alpha = logits.max(axis=1).mean() / np.linalg.norm((features - origin) @ residual, axis=1).mean()
    virtual = alpha * np.linalg.norm((test - origin) @ residual, axis=1)
    expected = logsumexp(test @ weight.T + bias, axis=1) - virtual
    detector = detectors.create("vim", dim=dim).fit(Outputs(logits, features), head=Head(weight, bias))
    found = detector.score(Outputs(test @ weight.T + bias, test))
    np.testing.assert_allclose(found, expected, rtol=1e-8, atol=1e-8)


def test_vim_with_tight_classes_is_the_same_in_float32_and_float64():
    """Most of the principal subspace then lies in directions whose eigenvalues float32 products would lose."""
    rng = np.random.default_rng(0)
    means, decay = rng.normal(size=(6, 32)), 3e-3 * np.geomspace(1, 1 / 30, 32)
    weight, rotation = rng.normal(size=(6, 32)), np.linalg.qr(rng.normal(size=(32, 32)))[0]
    draws = rng.normal(size=(2, 600, 32)) * decay
    fit, test = (3 * means[np.arange(600) % 6] + draws @ rotation).astype(np.float32)
    found = []
    for dtype in (np.float32, np.float64):
        outputs = [Outputs((z.astype(float) @ weight.T).astype(dtype), z.astype(dtype)) for z in (fit, test)]
        found.append(detectors.create("vim", dim=16).fit(outputs[0], head=Head(weight)).score(outputs[1]))
    residuals = [score - logsumexp(test.astype(float) @ weight.T, axis=1) for score in found]
    assert spearmanr(*residuals)[0] > 0.99


@pytest.mark.parametrize("dim", [D, D + 1, 1000])
def test_vim_without_a_residual_falls_back_to_half_and_says_so(dim):
    weight, bias, features, test = vim_data()
    fit, test = Outputs(features @ weight.T + bias, features), Outputs(test @ weight.T + bias, test)
    with pytest.warns(UserWarning, match=f"vim: dim {dim} leaves no residual in 12 dimensions; 6 is used"):
        found = detectors.create("vim", dim=dim).fit(fit, head=Head(weight, bias)).score(test)
    half = detectors.create("vim", dim=6).fit(fit, head=Head(weight, bias)).score(test)
    np.testing.assert_array_equal(found, half)


def test_vim_with_a_head_whose_weights_sum_to_zero():
    """As the weights of a softmax head do after weight decay: in float32 they are singular but for rounding."""
    weight, bias, features, _ = vim_data()
    weight = (weight - weight.mean(axis=0)).astype(np.float32)
    origin = -np.linalg.pinv(weight.astype(np.float64), rcond=1e-6) @ bias
    fit = Outputs(features @ weight.T + bias, features)
    detector = detectors.create("vim", dim=6).fit(fit, head=Head(weight, bias))
    np.testing.assert_allclose(detector.origin_, origin, rtol=1e-5)


@pytest.mark.parametrize(("rows", "classes", "dims"), [(400, 20, 512), (60, 20, 64)])
def test_rmds_with_few_samples_uses_the_same_directions_twice(rows, classes, dims):
    """Directions without spread within classes would count for the common mean alone, and favour what is far."""
    rng = np.random.default_rng(0)
    means = 3 * rng.normal(size=(classes, dims))
    labels = np.arange(rows) % classes
    features = means[labels] + rng.normal(size=(rows, dims))
    new = means[labels] + rng.normal(size=(rows, dims))
    far = 6 * rng.normal(size=(rows, dims))
    detector = detectors.create("rmds").fit(Outputs(np.zeros((rows, classes)), features, labels))
    known, unknown = (detector.score(Outputs(np.zeros((rows, classes)), x)) for x in (new, far))
    assert (known[:, None] > unknown).mean() > 0.9
    within = features - np.stack([features[labels == c].mean(axis=0) for c in range(classes)])[labels]
    basis = np.linalg.svd(within, full_matrices=False)[2][: rows - classes]
    x, y = features @ basis.T, new @ basis.T
    about = [y - x.mean(axis=0), *(y - x[labels == c].mean(axis=0) for c in range(classes))]
    inverses = [np.linalg.pinv(np.cov(z.T, bias=True)) for z in (x, within @ basis.T)]
    squared = [np.einsum("nd,de,ne->n", z, inverses[min(k, 1)], z) for k, z in enumerate(about)]
    np.testing.assert_allclose(known, squared[0] - np.min(squared[1:], axis=0), rtol=1e-5, atol=1e-4 * squared[0].max())


@pytest.mark.parametrize("name", ["mds", "rmds"])
def test_features_that_never_differ_score_zero(name):
    features = np.full((60, D), 0.1)
    with pytest.warns(UserWarning, match="every score is 0"):
        detector = fitted(name, features, np.arange(60) % C)
    assert (scores(detector, blobs(10, seed=1)[0]) == 0).all()

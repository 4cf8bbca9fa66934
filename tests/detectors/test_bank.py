"""Nearest neighbours against scikit-learn, and the sample that a bank keeps."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.special import logsumexp
from sklearn.neighbors import NearestNeighbors
from sklearn.preprocessing import normalize

from tood import detectors
from tood.detectors import Outputs
from tood.detectors.bank import Sample, top_products


def data(rows, seed, columns=4, dims=10):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(rows, columns)), rng.normal(size=(rows, dims)), rng.integers(columns, size=rows)


@pytest.mark.parametrize("k", [1, 3, 50, 600])
def test_knn_is_scikit_learns(k):
    logits, features, _ = data(600, 0)
    test = data(90, 1)
    reference = NearestNeighbors(n_neighbors=k).fit(normalize(features))
    expected = -(reference.kneighbors(normalize(test[1]))[0][:, -1] ** 2)
    found = detectors.create("knn", k=k).fit(Outputs(logits, features)).score(Outputs(test[0], test[1]))
    np.testing.assert_allclose(found, expected, rtol=1e-10)


def test_nnguide_is_its_definition():
    logits, features, labels = data(300, 0)
    test = data(50, 1)
    bank = normalize(features) * logsumexp(logits, axis=1)[:, None]
    guidance = np.sort(normalize(test[1]) @ bank.T, axis=1)[:, -20:].mean(axis=1)
    detector = detectors.create("nnguide", k=20, alpha=1.0).fit(Outputs(logits, features, labels))
    np.testing.assert_allclose(detector.score(Outputs(*test[:2])), guidance * logsumexp(test[0], axis=1), rtol=1e-10)


@pytest.mark.parametrize(("rows", "k"), [(1, 1), (10, 10), (500, 1), (5003, 7), (5003, 2000), (5003, 5003)])
def test_top_products_are_the_largest(rows, k):
    rng = np.random.default_rng(rows)
    queries, bank = rng.integers(-3, 4, size=(17, 5)).astype(float), rng.integers(-3, 4, size=(rows, 5)).astype(float)
    found = np.sort(top_products(queries, bank, k), axis=1)
    np.testing.assert_array_equal(found, np.sort(queries @ bank.T, axis=1)[:, rows - k :])


@pytest.mark.parametrize("name", ["knn", "nnguide"])
def test_a_bank_smaller_than_k_is_used_whole_and_says_so(name):
    logits, features, labels = data(30, 0)
    test = Outputs(*data(20, 1)[:2])
    with pytest.warns(UserWarning, match=f"{name}: the bank has 30 samples, fewer than k = 100"):
        found = detectors.create(name, k=100).fit(Outputs(logits, features, labels)).score(test)
    whole = detectors.create(name, k=30).fit(Outputs(logits, features, labels)).score(test)
    np.testing.assert_array_equal(found, whole)


@pytest.mark.parametrize(
    ("counts", "size", "expected"),
    [
        ([5, 100, 0, 3, 50], 20, [5, 6, 0, 3, 6]),
        ([5, 100, 0, 3, 50], 21, [5, 7, 0, 3, 6]),
        ([10, 10], 20, [10, 10]),
        ([9, 9, 9], 2, [1, 1, 0]),
        ([2, 3, 0], 100, [2, 3, 0]),
    ],
)
def test_a_sample_is_balanced_however_its_rows_are_offered(counts, size, expected):
    classes = np.repeat(np.arange(len(counts)), counts)
    rng, kept = np.random.default_rng(0), []
    for chunks in (1, 3, 40):
        sample = Sample(size, seed=0)
        for rows in np.array_split(rng.permutation(len(classes)), chunks):
            sample.add(rows[:, None], classes[rows], rows)
        kept.append(sample.parts[2])
        assert np.bincount(classes[kept[-1]], minlength=len(counts)).tolist() == expected
    np.testing.assert_array_equal(kept[0], kept[1])
    np.testing.assert_array_equal(kept[0], kept[2])


def test_a_capped_bank_is_balanced_seeded_and_made_of_fit_features():
    logits, features, _ = data(900, 0)
    labels = np.repeat([0, 1, 2], [800, 90, 10])
    fit = Outputs(logits, features, labels)
    detector = detectors.create("knn", k=1, size=60).fit(fit)
    rows = [int(np.flatnonzero(np.isclose(normalize(features), row).all(axis=1))[0]) for row in detector.bank_]
    assert len(set(rows)) == 60
    assert np.bincount(labels[rows]).tolist() == [25, 25, 10]
    order = np.random.default_rng(3).permutation(900)
    again = detectors.create("knn", k=1, size=60).fit([fit[order[:11]], fit[order[11:]]])
    np.testing.assert_array_equal(again.bank_, detector.bank_)
    other = detectors.create("knn", k=1, size=60, seed=1).fit(fit)
    assert not np.array_equal(other.bank_, detector.bank_)


def test_the_sample_is_uniform_within_a_class():
    """Whether a row is kept has nothing to do with what it is: means of kept rows scatter as random draws would."""
    features = np.random.default_rng(0).normal(size=(2000, 1)).astype(np.float32)
    features = np.hstack([features, np.ones_like(features)])
    kept = []
    for seed in range(200):
        fit = Outputs(np.zeros((2000, 2)), features)
        bank = detectors.create("knn", k=1, size=100, seed=seed).fit(fit).bank_
        kept.append((bank[:, 0] / bank[:, 1]).mean())
    assert abs(np.mean(kept) - features[:, 0].mean()) < 4 * 0.1 / np.sqrt(200)
    assert 0.08 < np.std(kept) < 0.12  # 1 / √100, less a little for drawing without replacement


def test_blocks_of_a_large_bank_do_not_show(monkeypatch):
    fit, test = data(900, 0), data(700, 1)
    detector = detectors.create("knn", k=3).fit(Outputs(*fit))
    whole = detector.score(Outputs(*test))
    monkeypatch.setattr("tood.detectors.base.LARGEST_BLOCK", 7 * 900)
    np.testing.assert_allclose(detector.score(Outputs(*test)), whole, rtol=1e-12)

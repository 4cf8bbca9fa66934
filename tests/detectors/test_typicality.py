from __future__ import annotations

import numpy as np
import pytest
from scipy.linalg import helmert
from scipy.spatial.distance import cdist
from sklearn.covariance import OAS

from tood import detectors
from tood.detectors import Outputs

PARTITION = [[0, 1], [2, 3], [4, 5]]


def make(counts, dimensions=8, seed=0, noise=0.4):
    """Outputs with ``counts[c]`` samples of class c, in random order, and 50 more of any."""
    rng = np.random.default_rng(seed)
    centres = rng.normal(size=(len(counts), dimensions)) + 1
    mix = np.diag(rng.uniform(0.2, 2, dimensions))

    def draw(labels):
        features = (centres[labels] + noise * rng.normal(size=(len(labels), dimensions)) @ mix) * rng.uniform(
            0.5, 2, size=(len(labels), 1)
        )
        return Outputs(3 * rng.normal(size=(len(labels), len(counts))), features, labels)

    return draw(rng.permutation(np.repeat(np.arange(len(counts)), counts))), draw(rng.integers(len(counts), size=50))


def directions(outputs):
    return outputs.features / np.linalg.norm(outputs.features, axis=1, keepdims=True)


def pooled(z, labels):
    """Class means, and the covariance as scikit-learn shrinks it, from n - K independent residuals.

    Helmert's rows turn the n samples of a class into n - 1 with mean zero and the same scatter.
    """
    groups = [z[labels == c] for c in np.unique(labels)]
    residuals = np.concatenate([helmert(len(group)) @ group for group in groups if len(group) > 1])
    return np.stack([group.mean(axis=0) for group in groups]), OAS(assume_centered=True).fit(residuals).covariance_


@pytest.mark.parametrize(
    ("counts", "dimensions"),
    [([30] * 6, 8), ([2] * 6, 8), ([2] * 6, 40), ([1, 9, 4, 2, 7, 3], 8)],
    ids=["plenty", "two a class", "two a class, D > B", "unequal"],
)
def test_typicality_is_scikit_learns_covariance_and_scipys_distance(counts, dimensions):
    fit, test = make(counts, dimensions)
    means, covariance = pooled(directions(fit), fit.labels)
    inverse = np.linalg.inv(covariance)
    expected = -cdist(directions(test), means, "mahalanobis", VI=inverse).min(axis=1)
    found = detectors.create("typicality").fit(fit).score(test)
    np.testing.assert_allclose(found, expected, rtol=1e-8)


def test_one_sample_a_class_is_the_euclidean_distance():
    fit, test = make([1] * 6)
    expected = -cdist(directions(test), directions(fit)).min(axis=1)
    np.testing.assert_allclose(detectors.create("typicality").fit(fit).score(test), expected, rtol=1e-9)

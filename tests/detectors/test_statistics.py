"""Against NumPy, SciPy's rule for the pseudo-inverse, and closed forms."""

import warnings

import numpy as np
import pytest
import scipy.special

from tood.detectors import FitData, Outputs
from tood.detectors.distance import whiten
from tood.detectors.statistics import Moments, column_sums, softmax, unit
from tood.energy import logsumexp


@pytest.mark.parametrize("rows", [1, 255, 256, 773])
def test_column_sums_are_exact_for_whole_numbers(rows):
    x = np.random.default_rng(0).integers(-9, 9, size=(rows, 3)).astype(np.float32)
    np.testing.assert_array_equal(column_sums(x), x.astype(np.float64).sum(axis=0))


def test_whitening_squares_to_the_pseudo_inverse():
    x = np.random.default_rng(0).normal(size=(200, 8))
    for scales in (np.ones(8), 10.0 ** -np.arange(8), np.array([1.0, 1, 1, 1, 1, 1, 1, 0])):
        covariance = np.cov((x * scales).T)
        a = whiten(covariance)
        np.testing.assert_allclose(a @ a.T, np.linalg.pinv(covariance, hermitian=True, rcond=1e-14), rtol=1e-6)
        assert a.shape == (8, np.count_nonzero(scales))


def test_whitening_leaves_out_what_is_rounding_of_larger_numbers():
    assert whiten(np.diag([1.0, 1e-3]), scale=1.0).shape == (2, 2)
    assert whiten(np.diag([1.0, 1e-3]), scale=1e14).shape == (2, 1)


@pytest.mark.parametrize("order", ["C", "F"])
def test_moments_are_those_of_the_whole_in_any_chunks(order, monkeypatch):
    monkeypatch.setattr("tood.detectors.rows.FIT_BLOCK", 1)  # blocks of 256 rows
    rng = np.random.default_rng(0)
    x, y = np.asarray(rng.normal(3, 1, size=(700, 5)), dtype=np.float32, order=order), rng.integers(3, size=700)
    chunks = [Outputs(np.zeros((end - start, 4)), x[start:end], y[start:end]) for start, end in ((0, 300), (300, 700))]
    moments = Moments.of(FitData(chunks, {"features", "labels"}))
    exact = x.astype(np.float64)
    means = np.stack([exact[y == c].mean(axis=0) for c in range(3)])
    np.testing.assert_allclose(moments.class_means[:3], means, rtol=1e-12)
    centred = exact - means[y]
    np.testing.assert_allclose(moments.within_covariance(), centred.T @ centred / 700, atol=1e-12)
    np.testing.assert_allclose(moments.second_moment(np.zeros(5)), exact.T @ exact / 700, rtol=1e-12)


def test_sums_that_overflow_say_nothing_and_are_right():
    x = np.array([[88.5, 88.5, 3.0], [200.0, 1.0, 0.0], [-300.0, -301.0, -302.0], [1.0, 2.0, 3.0]], dtype=np.float32)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # exp(88.5) is finite in float32, twice it is not
        np.testing.assert_allclose(logsumexp(x), scipy.special.logsumexp(x.astype(float), axis=1), rtol=1e-6)
        np.testing.assert_allclose(softmax(x), scipy.special.softmax(x.astype(float), axis=1), rtol=1e-5, atol=1e-30)


@pytest.mark.parametrize("factor", [1e-24, 1e-30, 1.0, 1e20, 1e37])
def test_directions_do_not_depend_on_the_scale(factor):
    x = np.random.default_rng(0).normal(size=(5, 7)).astype(np.float32)
    expected = x / np.linalg.norm(x, axis=1, keepdims=True)
    x[2] = 0
    expected[2] = 0
    np.testing.assert_allclose(unit(x * np.float32(factor)), expected, rtol=1e-5, atol=1e-6)

"""Row-wise functions where exponentials leave the range of float32."""

import warnings

import numpy as np
import pytest
import scipy.special

from tood.detectors.rowwise import softmax, unit
from tood.energy import logsumexp


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

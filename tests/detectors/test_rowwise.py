"""Row-wise functions where exponentials leave the range of float32."""

import warnings

import numpy as np
import scipy.special

from tood.detectors.rowwise import softmax
from tood.energy import logsumexp


def test_sums_that_overflow_say_nothing_and_are_right():
    x = np.array([[88.5, 88.5, 3.0], [200.0, 1.0, 0.0], [-300.0, -301.0, -302.0], [1.0, 2.0, 3.0]], dtype=np.float32)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # exp(88.5) is finite in float32, twice it is not
        np.testing.assert_allclose(logsumexp(x), scipy.special.logsumexp(x.astype(float), axis=1), rtol=1e-6)
        np.testing.assert_allclose(softmax(x), scipy.special.softmax(x.astype(float), axis=1), rtol=1e-5, atol=1e-30)

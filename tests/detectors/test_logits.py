"""Detectors of logits against SciPy and arithmetic in higher precision."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import log_softmax, logsumexp
from scipy.special import softmax as scipy_softmax
from scipy.stats import entropy

import tood
from tood import detectors
from tood.detectors import Outputs

SCALES = [0.1, 1.0, 5.0, 300.0]


def logits(scale, rows=200, columns=12, seed=0, dtype=np.float64):
    return (scale * np.random.default_rng(seed).normal(size=(rows, columns))).astype(dtype)


def score(name, x, **parameters):
    return detectors.create(name, **parameters).score(Outputs(x))


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("shift", [0.0, 400.0, -400.0])
def test_msp_maxlogit_energy(scale, shift):
    x = logits(scale) + shift
    np.testing.assert_allclose(score("msp", x), scipy_softmax(x, axis=1).max(axis=1), rtol=1e-12)
    np.testing.assert_array_equal(score("maxlogit", x), x.max(axis=1))
    np.testing.assert_allclose(score("energy", x), logsumexp(x, axis=1), rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(score("energy", x, temperature=7.0), 7 * logsumexp(x / 7, axis=1), rtol=1e-12)
    np.testing.assert_allclose(score("energy", x), tood.energy(x), rtol=1e-12, atol=1e-12)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.floats(-3000, 3000, width=32), min_size=1, max_size=8))
def test_float32_energy_is_as_good_as_float32_can_be(row):
    x = np.array([row], dtype=np.float32)
    exact = logsumexp(x.astype(np.float64), axis=1)
    assert abs(score("energy", x) - exact) <= 4 * np.spacing(np.float32(max(1, np.abs(exact[0]))))


@pytest.mark.parametrize("gamma", [0.01, 0.1, 1.0, 5.0])
@pytest.mark.parametrize("m", [1, 2, 5, 12, 100])
@pytest.mark.parametrize("scale", [0.1, 1.0, 10.0])
def test_gen_is_its_definition(gamma, m, scale):
    x = logits(scale)
    p = np.sort(np.exp(log_softmax(x.astype(np.longdouble), axis=1)), axis=1)[:, ::-1][:, :m]
    expected = -((p**gamma) * (1 - p) ** gamma).sum(axis=1)
    np.testing.assert_allclose(score("gen", x, gamma=gamma, m=m), expected.astype(float), rtol=1e-8)


def test_gen_keeps_apart_what_a_float32_softmax_cannot():
    x = np.zeros((3, 4), dtype=np.float32)
    x[:, 0] = [20, 30, 40]  # p is 1 - 6e-9, 1 - 3e-13, ...: all are 1 in float32
    found = score("gen", x, m=1)
    rest = 3 * np.exp(-x[:, 0].astype(np.float64))
    np.testing.assert_allclose(found, -((rest / (1 + rest) ** 2) ** 0.1), rtol=1e-5)
    assert found[0] < found[1] < found[2]


def test_klm_is_scipys_divergence():
    fit, test = logits(2.0, rows=500), logits(2.0, seed=1)
    fit[:, 5] = -20  # never predicted
    p = scipy_softmax(fit, axis=1)
    typical = [p[fit.argmax(axis=1) == k].mean(axis=0) for k in range(12) if k != 5]
    expected = [-min(entropy(row, d) for d in typical) for row in scipy_softmax(test, axis=1)]
    detector = detectors.create("klm").fit(Outputs(fit))
    np.testing.assert_allclose(detector.score(Outputs(test)), expected, rtol=1e-8)
    single = detectors.create("klm").fit(Outputs(fit.astype(np.float32))).score(Outputs(test.astype(np.float32)))
    np.testing.assert_allclose(single, expected, rtol=1e-4)


def test_klm_with_posteriors_that_vanish():
    fit = np.where(np.eye(4, dtype=bool), 0.0, -4000.0)[np.arange(40) % 4]
    detector = detectors.create("klm").fit(Outputs(fit))
    found = detector.score(Outputs(np.vstack([fit[:4], np.zeros((1, 4))])))
    np.testing.assert_allclose(found[:4], 0, atol=1e-12)
    assert found[4] < -50


@pytest.mark.parametrize("scale", [0.3, 3.0])
def test_gradnorm_is_the_norm_of_the_gradient(scale):
    import torch

    rng = np.random.default_rng(0)
    linear = torch.nn.Linear(7, 5).double()
    z = torch.from_numpy(scale * rng.normal(size=(30, 7)))
    expected = []
    for row in z:
        linear.zero_grad()
        (-linear(row).log_softmax(dim=0).sum()).backward()
        expected.append(float(linear.weight.grad.abs().sum()))
    with torch.no_grad():
        found = detectors.create("gradnorm").score(Outputs(linear(z), z))
    np.testing.assert_allclose(found, expected, rtol=1e-10)

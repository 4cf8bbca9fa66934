"""Detectors that shape activations, against their definitions row by row."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.special import logsumexp

from tood import detectors
from tood.detectors import Head, Outputs
from tood.detectors.shaping import largest

C, D = 9, 40
RNG = np.random.default_rng(0)
WEIGHT, BIAS = RNG.normal(size=(C, D)), RNG.normal(size=C)
FIT = np.maximum(RNG.normal(size=(300, D)), 0)
TEST = np.maximum(RNG.normal(size=(80, D)) + 0.3, 0)


def outputs(features):
    return Outputs(features @ WEIGHT.T + BIAS, features)


def found(name, features=TEST, **parameters):
    detector = detectors.create(name, **parameters).fit(outputs(FIT), head=Head(WEIGHT, BIAS))
    return detector.score(outputs(features))


def energy(features, weight=WEIGHT):
    return logsumexp(features @ weight.T + BIAS, axis=1)


@pytest.mark.parametrize("percentile", [0, 10, 50, 90, 99])
def test_dice(percentile):
    contribution = FIT.mean(axis=0) * WEIGHT
    kept = contribution > np.percentile(contribution, percentile)
    np.testing.assert_allclose(found("dice", percentile=percentile), energy(TEST, WEIGHT * kept), rtol=1e-10)


@pytest.mark.parametrize("percentile", [50, 85, 90, 99, 100])
def test_react(percentile):
    limit = np.percentile(FIT, percentile)
    np.testing.assert_allclose(found("react", percentile=percentile), energy(np.minimum(TEST, limit)), rtol=1e-10)


@pytest.mark.parametrize(("high", "low"), [(90, 10), (99, 60), (80, 80)])
def test_vra(high, low):
    lower, upper = np.percentile(FIT, [low, high])
    np.testing.assert_allclose(found("vra", high=high, low=low), energy(np.clip(TEST, lower, upper)), rtol=1e-10)
    zeroed = np.where(lower > TEST, 0, np.minimum(TEST, upper))
    np.testing.assert_allclose(found("vra", high=high, low=low, below="zero"), energy(zeroed), rtol=1e-10)


@pytest.mark.parametrize("percentile", [65, 90, 95])
@pytest.mark.parametrize("variant", ["b", "p", "s"])
def test_ash(variant, percentile):
    kept = D - round(D * percentile / 100)
    shaped = np.zeros_like(TEST)
    for row, z in zip(shaped, TEST, strict=True):
        top = np.argsort(-z, kind="stable")[:kept]
        scale = np.exp(z.sum() / z[top].sum()) if variant == "s" else 1.0
        row[top] = z.sum() / kept if variant == "b" else z[top] * scale
    np.testing.assert_allclose(found("ash", variant=variant, percentile=percentile), energy(shaped), rtol=1e-10)


@pytest.mark.parametrize("percentile", [65, 85, 95])
def test_scale(percentile):
    kept = D - round(D * percentile / 100)
    gain = np.exp(TEST.sum(axis=1) / np.sort(TEST, axis=1)[:, D - kept :].sum(axis=1))
    np.testing.assert_allclose(found("scale", percentile=percentile), energy(TEST * gain[:, None]), rtol=1e-10)


@pytest.mark.parametrize("name", ["ash", "scale"])
def test_signed_features_use_their_positive_part(name):
    signed = RNG.normal(size=(50, D)) - 1  # sums are negative
    parameters = {"variant": "s"} if name == "ash" else {}
    kept = D - round(D * (90 if name == "ash" else 85) / 100)
    order = np.argsort(-signed, axis=1)[:, :kept]
    top = np.take_along_axis(signed, order, axis=1)
    gain = np.exp(np.maximum(signed, 0).sum(axis=1) / np.maximum(top, 0).sum(axis=1))
    shaped = signed
    if name == "ash":
        shaped = np.zeros_like(signed)
        np.put_along_axis(shaped, order, top, axis=1)
    np.testing.assert_allclose(found(name, signed, **parameters), energy(shaped * gain[:, None]), rtol=1e-10)
    binary = found("ash", -np.abs(signed))  # nothing positive: the constant is zero, not negative
    np.testing.assert_allclose(binary, energy(np.zeros((50, D))), rtol=1e-10)


def test_exactly_k_are_kept_and_of_equals_the_first():
    z = np.array([[0.0, 2.0, 0.0, 1.0, 0.0], [1.0, 1.0, 1.0, 1.0, 1.0], [5.0, 4.0, 3.0, 2.0, 1.0]])
    expected = [[1, 1, 0, 1, 0], [1, 1, 1, 0, 0], [1, 1, 1, 0, 0]]
    np.testing.assert_array_equal(largest(z, 3), np.array(expected, dtype=bool))
    assert largest(z, 5).all()


@pytest.mark.parametrize("name", ["ash", "scale"])
def test_a_percentile_that_leaves_nothing_keeps_one_and_says_so(name):
    with pytest.warns(UserWarning, match=f"{name}: percentile 100 leaves none of 40 dimensions; one is kept"):
        everything = found(name, percentile=100)
    one_left = 100 * (D - 1) / D
    np.testing.assert_array_equal(everything, found(name, percentile=one_left))


def test_ras():
    profile = np.mean([sorted(z) for z in FIT], axis=0)
    shifted = [[profile[sum(other < x for other in z) + list(z[:i]).count(x)] for i, x in enumerate(z)] for z in TEST]
    np.testing.assert_allclose(found("ras"), energy(np.array(shifted)), rtol=1e-10)

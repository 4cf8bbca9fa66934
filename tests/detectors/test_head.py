"""Detectors that use the head or class means, against loops over their definitions."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.special import logsumexp

from tood import detectors
from tood.detectors import Head, Outputs

C, D = 6, 9
RNG = np.random.default_rng(5)
WEIGHT, BIAS = RNG.normal(size=(C, D)), RNG.normal(size=C)


def outputs(rows, seed, labelled=False):
    rng = np.random.default_rng(seed)
    features = np.maximum(rng.normal(size=(rows, D)) + 0.2, 0)
    return Outputs(features @ WEIGHT.T + BIAS, features, rng.integers(C, size=rows) if labelled else None)


FIT, TEST = outputs(200, 0, labelled=True), outputs(60, 1)


def found(name, **parameters):
    return detectors.create(name, **parameters).fit(FIT, head=Head(WEIGHT, BIAS)).score(TEST)


@pytest.mark.parametrize("normalizer", ["distance", "norm"])
def test_fdbd(normalizer):
    mean = FIT.features.mean(axis=0) if normalizer == "distance" else 0
    expected = []
    for z, l in zip(TEST.features, TEST.logits, strict=True):
        y = l.argmax()
        terms = [abs(l[c] - l[y]) / np.linalg.norm(WEIGHT[c] - WEIGHT[y]) for c in range(C) if c != y]
        expected.append(sum(terms) / np.linalg.norm(z - mean))
    np.testing.assert_allclose(found("fdbd", normalizer=normalizer), expected, rtol=1e-10)


def test_fdbd_leaves_out_classes_with_the_same_weights():
    weight, bias = np.vstack([WEIGHT, WEIGHT[:1], WEIGHT[:1]]), np.append(BIAS, [BIAS[0], -50.0])
    widen = lambda o: Outputs(o.features @ weight.T + bias, o.features)  # noqa: E731
    detector = detectors.create("fdbd").fit(widen(FIT), head=Head(weight, bias))
    mean, expected = FIT.features.mean(axis=0), []
    for z, l in zip(TEST.features, widen(TEST).logits, strict=True):
        gaps = np.linalg.norm(weight - weight[l.argmax()], axis=1)
        apart = gaps > 0
        expected.append((np.abs(l - l.max())[apart] / gaps[apart]).sum() / np.linalg.norm(z - mean))
    np.testing.assert_allclose(detector.score(widen(TEST)), expected, rtol=1e-6)


def test_fdbd_without_a_direction_is_the_lowest_score():
    detector = detectors.create("fdbd", normalizer="norm").fit(FIT, head=Head(WEIGHT, BIAS))
    assert detector.score(Outputs(BIAS[None], np.zeros((1, D)))) == 0
    assert detector.score(TEST).min() > 0


@pytest.mark.parametrize("alpha", [0.0, 1e-4, 0.5])
def test_nci(alpha):
    mean, expected = FIT.features.mean(axis=0), []
    for z, l in zip(TEST.features, TEST.logits, strict=True):
        expected.append(WEIGHT[l.argmax()] @ (z - mean) / np.linalg.norm(z - mean) + alpha * np.abs(z).sum())
    np.testing.assert_allclose(found("nci", alpha=alpha), expected, rtol=1e-10)


@pytest.mark.parametrize("metric", ["inner_product", "euclidean", "cosine"])
def test_she(metric):
    predicted = FIT.logits.argmax(axis=1)
    expected = []
    for z, l in zip(TEST.features, TEST.logits, strict=True):
        c = l.argmax()
        right = (FIT.labels == c) & (predicted == c)
        pattern = FIT.features[right if right.any() else FIT.labels == c].mean(axis=0)
        similarity = {
            "inner_product": z @ pattern,
            "euclidean": -np.linalg.norm(z - pattern),
            "cosine": z @ pattern / np.linalg.norm(z) / np.linalg.norm(pattern),
        }
        expected.append(similarity[metric])
    np.testing.assert_allclose(found("she", metric=metric), expected, rtol=1e-10)


def test_she_represents_a_class_without_correct_samples_by_what_there_is():
    labels = np.where(FIT.labels == 2, 3, FIT.labels)  # class 2 is gone
    logits = FIT.logits.copy()
    logits[labels == 4, 4] = -99.0  # class 4 is forgotten
    detector = detectors.create("she").fit(Outputs(logits, FIT.features, labels))
    np.testing.assert_allclose(detector.patterns_[2], FIT.features.mean(axis=0), rtol=1e-12)
    np.testing.assert_allclose(detector.patterns_[4], FIT.features[labels == 4].mean(axis=0), rtol=1e-12)


@pytest.mark.parametrize("shift", [8.0, -20.0])  # of all logits: energies above zero, and sunk below it
def test_cadref(shift):
    fit, test = (Outputs(part.logits + shift, part.features) for part in (FIT, TEST))
    predicted, energies = fit.logits.argmax(axis=1), logsumexp(fit.logits, axis=1)
    lowest = min(0, energies.min())
    assert (lowest < 0) == (shift < 0)
    mean_energy, expected = (energies - lowest).mean(), []
    for z, l in zip(test.features, test.logits, strict=True):
        d, sign = z - fit.features[predicted == l.argmax()].mean(axis=0), np.sign(WEIGHT[l.argmax()])
        along = sum(abs(x) for x, s in zip(d, sign, strict=True) if x * s > 0)
        against = sum(abs(x) for x, s in zip(d, sign, strict=True) if x * s < 0)
        energy = max(logsumexp(l) - lowest, mean_energy / 100)
        expected.append(-(along / energy + against / mean_energy) / np.abs(z).sum())
    score = detectors.create("cadref").fit(fit, head=Head(WEIGHT, BIAS)).score(test)
    np.testing.assert_allclose(score, expected, rtol=1e-10)

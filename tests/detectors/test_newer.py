"""Detectors published since OpenOOD 1.5, each against a computation by hand."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import scipy.special
import torch
from scipy.stats import multivariate_normal, weibull_min
from sklearn.covariance import OAS
from sklearn.neighbors import NearestNeighbors

from tood import detectors
from tood.detectors import Head, Outputs
from tood.detectors.logits import SHIFT, weibull
from tood.errors import ToodError

C, D, TASKS = 6, 9, [[0, 1], [2, 3], [4, 5]]
RNG = np.random.default_rng(5)
CENTRES = np.maximum(3 * RNG.normal(size=(C, D)), 0) + 0.5
WEIGHT = CENTRES / 2  # of the nearest centre: most samples are classified correctly, not all
BIAS = -(CENTRES**2).sum(axis=1) / 4


def outputs(rows, seed, labelled=False):
    rng = np.random.default_rng(seed)
    labels = rng.integers(C, size=rows)
    features = np.maximum(CENTRES[labels] + 1.5 * rng.normal(size=(rows, D)), 0)
    return Outputs(features @ WEIGHT.T + BIAS, features, labels if labelled else None)


FIT, TEST = outputs(300, 0, labelled=True), outputs(60, 1)
PREDICTED, RIGHT = FIT.logits.argmax(axis=1), FIT.logits.argmax(axis=1) == FIT.labels


def found(name, fit=FIT, test=TEST, head=(WEIGHT, BIAS), **parameters):
    return detectors.create(name, **parameters).fit(fit, partition=TASKS, head=Head(*head)).score(test)


def unit(x):
    return x / np.linalg.norm(x, axis=-1, keepdims=True)


def test_entropy_is_scipys():
    expected = -scipy.stats.entropy(scipy.special.softmax(TEST.logits, axis=1), axis=1)
    np.testing.assert_allclose(found("entropy"), expected, rtol=1e-10)
    confident = np.array([[100.0, 0.0, -800.0], [60.0, 0.0, 0.0]])  # H = R (1 + gap) to first order in R
    expected = [-np.exp(-100) * 101, -2 * np.exp(-60) * 61]
    np.testing.assert_allclose(found("entropy", test=Outputs(confident)), expected, rtol=1e-10)


@pytest.mark.parametrize("covariance", ["class", "tied"])
def test_gmm_is_a_mixture_of_gaussians(covariance):
    rows = [FIT.features[FIT.labels == c] for c in range(C)]
    means = [x.mean(axis=0) for x in rows]
    if covariance == "class":
        fitted = [OAS().fit(x).covariance_ for x in rows]  # scikit-learn's
        shrinkage = "oas"
    else:
        pooled = sum((x - m).T @ (x - m) for x, m in zip(rows, means, strict=True)) / len(FIT)
        fitted = [0.7 * pooled + 0.3 * np.trace(pooled) / D * np.eye(D)] * C
        shrinkage = 0.3
    parts = zip(rows, means, fitted, strict=True)
    logs = [np.log(len(x) / len(FIT)) + multivariate_normal(m, s).logpdf(TEST.features) for x, m, s in parts]
    expected = scipy.special.logsumexp(logs, axis=0)
    np.testing.assert_allclose(found("gmm", covariance=covariance, shrinkage=shrinkage), expected, rtol=1e-6)


@pytest.mark.parametrize("shrinkage", [0.2, 1e-5])
def test_gmm_with_more_dimensions_than_samples_is_scipys(shrinkage):
    rng = np.random.default_rng(0)
    labels, features, test = np.repeat(np.arange(3), [2, 5, 4]), rng.normal(size=(11, 30)), rng.normal(size=(7, 30))
    logs = []
    for c in range(3):
        own = features[labels == c]
        covariance = (1 - shrinkage) * np.cov(own.T, bias=True)
        covariance += shrinkage * own.var(axis=0).mean() * np.eye(30)
        logs.append(np.log(len(own) / 11) + multivariate_normal(own.mean(axis=0), covariance).logpdf(test))
    fit = Outputs(np.eye(3)[labels], features, labels)
    detector = detectors.create("gmm", covariance="class", shrinkage=shrinkage).fit(fit)
    score = detector.score(Outputs(np.zeros((7, 3)), test))
    np.testing.assert_allclose(score, scipy.special.logsumexp(logs, axis=0), rtol=2e-10 / shrinkage)  # of the floor


@pytest.mark.parametrize("covariance", ["class", "tied"])
def test_gmm_with_one_sample_in_every_class_has_unit_variance(covariance):
    rng = np.random.default_rng(0)
    means, test = rng.normal(size=(20, 16)), rng.normal(size=(7, 16))
    fit = Outputs(np.zeros((20, 24)), means, rng.permutation(20))
    score = detectors.create("gmm", covariance=covariance).fit(fit).score(Outputs(np.zeros((7, 24)), test))
    logs = [multivariate_normal(mean, np.eye(16)).logpdf(test) - np.log(20) for mean in means]
    np.testing.assert_allclose(score, scipy.special.logsumexp(logs, axis=0), rtol=1e-9)


def test_gmm_shares_a_covariance_if_one_per_class_is_too_much(monkeypatch):
    np.testing.assert_array_equal(found("gmm"), found("gmm", covariance="class"))
    monkeypatch.setattr("tood.detectors.typicality.MOST_NUMBERS", C * D**2)  # as many as there are: not too much
    np.testing.assert_array_equal(found("gmm"), found("gmm", covariance="class"))
    monkeypatch.setattr("tood.detectors.typicality.MOST_NUMBERS", C * D**2 - 1)
    np.testing.assert_array_equal(found("gmm"), found("gmm", covariance="tied"))


def relation(fit, test, power):
    p, q = scipy.special.softmax(test.logits, axis=1), scipy.special.softmax(fit.logits, axis=1)
    relations = np.maximum(unit(test.features) @ unit(fit.features).T, 0) * (p @ q.T)
    return np.where(relations > 0.03, relations**power, 0).mean(axis=1)


@pytest.mark.parametrize("power", [1, 4])
def test_relation(power):
    np.testing.assert_allclose(found("relation", power=power), relation(FIT, TEST, power), rtol=1e-10)


def test_the_weibull_fit_is_scipys():
    """SciPy fits the distances themselves; ours are shifted, so it is given the same numbers."""
    for seed in range(3):
        tail = np.sort(np.random.default_rng(seed).gamma(3, size=25))
        start, shape, log_scale = weibull(tail)
        assert start == tail[0]
        x = tail - tail[0] + SHIFT
        own = weibull_min.logpdf(x, shape, scale=np.exp(log_scale)).sum()
        guess = weibull_min.fit(x, shape, floc=0, scale=np.exp(log_scale) * 1.0001)
        assert own >= weibull_min.logpdf(x, *guess).sum() - 1e-6
        for factor in (0.99, 1.01):  # a maximum of the likelihood
            assert own > weibull_min.logpdf(x, shape * factor, scale=np.exp(log_scale)).sum()


@pytest.mark.parametrize("alpha", [1, 3, 10])
def test_openmax(alpha):
    centres = [FIT.logits[(FIT.labels == c) & RIGHT].mean(axis=0) for c in range(C)]
    assert 0.7 < RIGHT.mean() < 1
    models = []
    for c in range(C):
        distances = np.linalg.norm(FIT.logits[(FIT.labels == c) & RIGHT] - centres[c], axis=1)
        models.append(weibull(np.sort(distances)[-20:]))
    expected, count = [], min(alpha, C)
    for l in TEST.logits:
        revised, unknown = l.copy(), 0.0
        for rank, c in enumerate(np.argsort(-l)[:count], start=1):
            start, shape, log_scale = models[c]
            outside = weibull_min.cdf(np.linalg.norm(l - centres[c]) - start + SHIFT, shape, scale=np.exp(log_scale))
            share = (count - rank + 1) / count * outside
            revised[c] -= l[c] * share
            unknown += l[c] * share
        probabilities = scipy.special.softmax(np.append(revised, unknown))
        expected.append(np.log(probabilities[:-1].sum() / probabilities[-1]))
    np.testing.assert_allclose(found("openmax", alpha=alpha), expected, rtol=1e-6)


def test_openmax_takes_a_class_without_samples_for_unknown():
    seen = FIT[np.flatnonzero(FIT.labels != 3)]
    positive = np.full((1, C), 1.0)
    positive[0, 3] = 8.0
    score = found("openmax", fit=seen, test=Outputs(positive), alpha=1)
    np.testing.assert_allclose(score, scipy.special.logsumexp([1, 1, 1, 0, 1, 1]) - 8)


def test_openmax_of_a_class_with_one_sample_is_a_step_there():
    """At the sample nothing is revised; anywhere else the largest logit becomes that of "unknown"."""
    fit = Outputs(np.array([[4.0, 0.0], [5.0, 1.0], [0.0, 5.0]]), labels=np.array([0, 0, 1]))
    test = np.array([[0.0, 5.0], [0.5, 5.0]])
    score = detectors.create("openmax", alpha=1).fit(fit).score(Outputs(test))
    np.testing.assert_allclose(score, [np.logaddexp(0, 5), np.logaddexp(0.5, 0) - 5])


def test_core():
    def residual(z, c):
        w = unit(WEIGHT[c])
        return z - (w @ z) * w

    means = [np.mean([residual(z, c) for z in FIT.features[FIT.labels == c]], axis=0) for c in range(C)]

    def signals(some):
        energy = scipy.special.logsumexp(some.logits, axis=1)
        cosine = []
        for z, l in zip(some.features, some.logits, strict=True):
            r, m = residual(z, l.argmax()), means[l.argmax()]
            cosine.append(r @ m / np.linalg.norm(r) / np.linalg.norm(m))
        return np.stack([energy, cosine])

    fit, test = signals(FIT), signals(TEST)
    expected = ((test - fit.mean(axis=1, keepdims=True)) / fit.std(axis=1, keepdims=True)).sum(axis=0)
    np.testing.assert_allclose(found("core"), expected, rtol=1e-8)


def test_core_ignores_a_residual_that_is_rounding():
    """Features along the weight of the predicted class have no residual, so only the energy distinguishes them."""
    weight = np.eye(3)
    fit = Outputs(np.diag([2.0, 3.0, 4.0]), np.diag([2.0, 3.0, 4.0]), np.arange(3))
    score = detectors.create("core").fit(fit, head=Head(weight)).score(fit)
    energy = scipy.special.logsumexp(fit.logits, axis=1)
    np.testing.assert_allclose(score, (energy - energy.mean()) / energy.std(), rtol=1e-10)


@pytest.mark.parametrize("level", [1e-3, 0.3, 33.3, 1234.5])
def test_core_does_not_magnify_the_rounding_of_equal_energies(level):
    """All fit samples have one energy, so its spread is taken for 1: an energy higher by 1 scores higher by 1."""
    logits, features = np.full((7, 3), level), RNG.random((7, 3))
    detector = detectors.create("core").fit(Outputs(logits, features, np.arange(7) % 3), head=Head(np.eye(3)))
    low, high = (detector.score(Outputs(logits + shift, features)) for shift in (0, 1))
    np.testing.assert_allclose(high - low, 1, rtol=1e-9)


def test_gram():
    def sums(z, p):
        matrix = np.outer(z**p, z**p)
        total = matrix.sum(axis=1)
        return np.sign(total) * np.abs(total) ** (1 / p)

    signed = Outputs(FIT.logits, FIT.features - 0.5)
    expected = []
    for z, l in zip(TEST.features - 0.5, TEST.logits, strict=True):
        deviation = 0.0
        for p in (1, 2, 3):
            fit = np.array([sums(x, p) for x in signed.features[l.argmax() == PREDICTED]])
            low, high = fit.min(axis=0), fit.max(axis=0)
            floor = 1e-3 * max(np.abs(low).max(), np.abs(high).max())
            g = sums(z, p)
            deviation += (np.maximum(low - g, 0) / np.maximum(np.abs(low), floor)).sum()
            deviation += (np.maximum(g - high, 0) / np.maximum(np.abs(high), floor)).sum()
        expected.append(-deviation)
    score = found("gram", orders=3, fit=signed, test=Outputs(TEST.logits, TEST.features - 0.5))
    np.testing.assert_allclose(score, expected, rtol=1e-8, atol=1e-12)


def test_weiper():
    repeats, bins, windows = 4, 30, (5, 8)
    noise = np.random.default_rng(0).normal(size=(repeats, C, D))
    heads = WEIGHT + 2.1 * np.linalg.norm(WEIGHT, axis=1)[:, None] * unit(noise)

    def activations(z):
        return z, np.concatenate([z @ head.T + BIAS for head in heads], axis=-1)

    def density(x, low, high):
        out = np.zeros(bins)
        for value in x:
            place = np.clip((value - low) / (high - low), 0, 1) * (bins - 1)
            left = min(int(place), bins - 2)
            out[left] += 1 - (place - left)
            out[left + 1] += place - left
        return out / len(x)

    def floored(x, floor):
        return (x + floor) / (x + floor).sum()

    ends = [(a.min(), a.max()) for a in activations(FIT.features)]
    fit = [[density(x, *e) for x, e in zip(activations(z), ends, strict=True)] for z in FIT.features]
    means = [np.mean(part, axis=0) for part in zip(*fit, strict=True)]
    expected = []
    for z in TEST.features:
        logits = activations(z)[1].reshape(repeats, C)
        score = 0.5 * scipy.special.softmax(logits, axis=1).max(axis=1).mean()
        for i, (x, factor, floor) in enumerate(zip(activations(z), (1, 2), (0.01, 0.025), strict=True)):
            p, width = density(x, *ends[i]), windows[i]
            before = (width - 1) // 2
            places = np.arange(bins)[:, None] + np.arange(width) - before
            running = p[np.clip(places, 0, bins - 1)].mean(axis=1)
            q, m = floored(running, floor), floored(means[i], floor)
            score -= factor * ((q * np.log(q / m)).sum() + (m * np.log(m / q)).sum())
        expected.append(score)
    settings = {"samples": 300, "smoothing": 5, "smoothing_perturbed": 8, "lambda_1": 2.0, "lambda_2": 0.5}
    np.testing.assert_allclose(found("weiper", repeats=repeats, bins=bins, **settings), expected, rtol=1e-8)


def test_grood_is_the_gradient_that_autograd_computes():
    z = torch.tensor(FIT.features)
    prototypes = torch.stack([z[torch.tensor(FIT.labels) == c].mean(dim=0) for c in range(C)])
    second = torch.tensor(FIT.logits).topk(2, dim=1).indices[:, 1]
    unknown = ((z + prototypes[second]) / 2).mean(dim=0).requires_grad_()

    def gradient(outputs):
        rows = []
        for x, l in zip(torch.tensor(outputs.features), torch.tensor(outputs.logits), strict=True):
            scores = -torch.linalg.vector_norm(x - torch.cat([prototypes, unknown[None]]), dim=1)
            loss = torch.nn.functional.cross_entropy(scores[None], l.argmax()[None])
            rows.append(torch.autograd.grad(loss, unknown)[0].numpy())
        return np.array(rows)

    reference = NearestNeighbors(n_neighbors=1).fit(gradient(FIT)[RIGHT])
    expected = -reference.kneighbors(gradient(TEST))[0][:, 0]
    np.testing.assert_allclose(found("grood"), expected, rtol=1e-6)


@pytest.mark.parametrize("composition", ["max", "min"])
def test_tpl(composition):
    means = [FIT.features[FIT.labels == c].mean(axis=0) for c in range(C)]
    centred = FIT.features - np.array(means)[FIT.labels]
    precision = np.linalg.inv(centred.T @ centred / len(FIT))
    tasks = np.array([0, 0, 1, 1, 2, 2])

    def near(z, t):
        return 1 / min((z - means[c]) @ precision @ (z - means[c]) for c in TASKS[t])

    scales = []
    for t, columns in enumerate(TASKS):
        own = np.flatnonzero(tasks[FIT.labels] == t)
        logit = np.abs(FIT.logits[own][:, columns].max(axis=1)).mean()
        scales.append((np.mean([near(FIT.features[i], t) for i in own]), logit))
    expected = []
    for z, l in zip(TEST.features, TEST.logits, strict=True):
        scores = []
        for t, columns in enumerate(TASKS):
            others = unit(FIT.features[tasks[FIT.labels] != t])
            far = np.sort(((others - unit(z)) ** 2).sum(axis=1))[4]
            a, b = near(z, t) / scales[t][0] + far, l[columns].max() / scales[t][1]
            scores.append(np.logaddexp(a, b) if composition == "max" else -np.logaddexp(-a, -b))
        expected.append(max(scores))
    np.testing.assert_allclose(found("tpl", composition=composition, size=None), expected, rtol=1e-8)


def test_tpl_needs_the_partition_and_takes_one_task():
    with pytest.raises(ToodError, match="partition: tpl needs the logit columns"):
        detectors.create("tpl").fit(FIT)
    one = detectors.create("tpl").fit(FIT, partition=[list(range(C))])
    assert np.isfinite(one.score(TEST)).all()


def test_tpl_keeps_a_sample_of_every_class_however_small_the_size():
    assert len(detectors.create("tpl", size=2).fit(FIT, partition=TASKS).bank_) == C
    np.testing.assert_array_equal(found("tpl", size=2), found("tpl", size=C))


def test_knn_warns_if_k_exceeds_the_samples_of_a_class():
    few = FIT[np.concatenate([np.flatnonzero(FIT.labels == 0)[:7], np.flatnonzero(FIT.labels != 0)])]
    with pytest.warns(UserWarning, match="knn: k = 20 exceeds the 7 samples of the smallest class"):
        detectors.create("knn", k=20).fit(few)
    with pytest.warns(UserWarning, match="knn: k = 7 exceeds the 2 samples of the smallest class"):
        detectors.create("knn", k=7, size=2 * C).fit(few)  # of the bank: the fit set has 7
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        detectors.create("knn", k=7).fit(few)


def test_gmm_gives_a_class_that_hardly_varies_the_common_variance():
    rng = np.random.default_rng(0)
    labels = np.repeat([0, 1], 30)
    z = np.where(labels[:, None] == 0, rng.normal(size=(60, 2)), 5 + 1e-9 * rng.normal(size=(60, 2)))
    detector = detectors.create("gmm", covariance="class").fit(Outputs(np.eye(2)[labels], z, labels))
    within = np.concatenate([z[labels == c] - z[labels == c].mean(axis=0) for c in (0, 1)])
    assert detector.covariances_[1] == pytest.approx(np.eye(2) * (within**2).sum() / 60 / 2, rel=0.05)


def test_a_file_with_an_invalid_setting_is_refused(tmp_path):
    detector = detectors.create("tpl").fit(FIT, partition=TASKS)
    detector.composition = "median"
    detector.save(tmp_path / "tpl.safetensors")
    with pytest.raises(ToodError, match="composition"):
        detectors.Detector.load(tmp_path / "tpl.safetensors")


@pytest.mark.parametrize("tasks", [TASKS, [list(range(C))]])
def test_ananc(tasks):
    weight = torch.tensor(np.random.default_rng(0).normal(size=(D, 50)))

    def random(h):
        return torch.nn.functional.gelu(torch.nn.functional.normalize(h) @ weight, approximate="tanh")

    h, y, test = torch.tensor(FIT.features), torch.tensor(FIT.labels), torch.tensor(TEST.features)
    means = torch.stack([h[y == c].mean(dim=0) for c in range(C)])
    simplex = torch.eye(C, dtype=h.dtype) - 1 / C
    if len(tasks) == 1:
        targets = means
    else:  # the rotation of the simplex's corners that brings them nearest to the means (orthogonal Procrustes)
        values, vectors = torch.linalg.eigh(simplex)
        corners = vectors[:, values > 0.5]
        u, _, v = torch.linalg.svd(means.T @ corners, full_matrices=False)
        targets = corners @ (u @ v).T
        torch.testing.assert_close(targets @ targets.T, simplex)
    z = random(h)
    theta = torch.linalg.inv(z.T @ z + 3.0 * torch.eye(50)) @ z.T @ targets[y]
    cosines = torch.nn.functional.cosine_similarity((random(test) @ theta)[:, None], random(means) @ theta, dim=2)
    detector = detectors.create("ananc", dim=50, ridge=3.0).fit(FIT, partition=tasks)
    np.testing.assert_allclose(detector.score(TEST), cosines.max(dim=1).values, rtol=1e-8)

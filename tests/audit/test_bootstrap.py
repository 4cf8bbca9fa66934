"""Intervals against what they stand for: repeated sampling, and a bootstrap done the long way."""

import numpy as np
import pytest

from tood.audit.bootstrap import Statistics, estimate
from tood.audit.evidence import Evidence, combine
from tood.metrics import auroc


def loss_of(known, unknown, statistics=None):
    """The mean loss of three tasks between two steps, [2, 3, n] and [2, m]."""
    weights = np.full(3, 1 / 3)
    statistics = statistics or Statistics()
    tasks = np.repeat(np.arange(3), known.shape[2])
    indices = np.concatenate([statistics.indices(("id", task), known.shape[2]) for task in range(3)])
    ood = statistics.indices("ood", unknown.shape[1])
    for step, sign in ((0, 1), (1, -1)):
        statistics.add_auroc("loss", sign * weights, known[step].ravel(), tasks, indices, unknown[step], ood)
    return statistics


def drawn(rng, n=60, m=120):
    """The same images at both steps: their noise is shared in part."""
    shared, shared_ood = rng.normal(size=(3, n)), rng.normal(size=m)
    known = np.stack([1.8 + shared + 0.5 * rng.normal(size=(3, n)), 0.9 + shared + 0.5 * rng.normal(size=(3, n))])
    return known, np.stack([shared_ood + 0.5 * rng.normal(size=m) for _ in range(2)])


def test_value_is_the_mean_of_aurocs():
    known, unknown = drawn(np.random.default_rng(0))
    known = np.round(known, 1)  # with ties
    expected = np.mean([auroc(known[0, i], unknown[0]) - auroc(known[1, i], unknown[1]) for i in range(3)])
    assert loss_of(known, unknown).values["loss"] == pytest.approx(expected, abs=1e-12)


def test_spread_of_the_draws_is_that_of_repeated_sampling():
    rng = np.random.default_rng(1)
    samples = [loss_of(*drawn(rng)) for _ in range(300)]
    observed = np.std([sample.values["loss"] for sample in samples])
    claimed = np.mean([sample.draws(["loss"])["loss"].std() for sample in samples[:40]])
    assert claimed == pytest.approx(observed, rel=0.12)


def test_draws_agree_with_resampling_the_samples_themselves():
    rng = np.random.default_rng(2)
    known, unknown = drawn(rng)
    values = []
    for _ in range(400):
        rows, ood = rng.integers(60, size=(3, 60)), rng.integers(120, size=120)
        picked = np.take_along_axis(known, np.broadcast_to(rows, known.shape), axis=2)
        values.append(loss_of(picked, unknown[:, ood]).values["loss"])
    draws = loss_of(known, unknown).draws(["loss"], resamples=2000)["loss"]
    assert draws.std() == pytest.approx(np.std(values), rel=0.12)
    assert np.quantile(draws, [0.025, 0.975]) == pytest.approx(np.quantile(values, [0.025, 0.975]), abs=0.015)


def test_a_difference_of_equal_scores_has_no_spread():
    """The same images count alike for every score: what two scores have in common cancels."""
    known, unknown = drawn(np.random.default_rng(3))
    statistics = Statistics()
    tasks, indices = np.zeros(60, dtype=int), statistics.indices("id", 60)
    for name in ("a", "b"):
        args = (known[0, 0], tasks, indices, unknown[0], statistics.indices("ood", 120))
        statistics.add_auroc(name, np.ones(1), *args)
    draws = statistics.draws(["a", "b"])
    np.testing.assert_allclose(draws["a"] - draws["b"], 0, atol=1e-12)


def test_a_mean_over_part_of_a_block():
    statistics = Statistics()
    indices = statistics.indices("id", 100)
    values = np.random.default_rng(4).normal(size=50)
    statistics.add_mean("mean", 2.0, values, indices[:50])
    found = estimate(statistics.values["mean"], statistics.draws(["mean"], 4000)["mean"])
    assert found.value == pytest.approx(2 * values.mean())
    assert found.high - found.low == pytest.approx(2 * 2 * 1.96 * values.std() / np.sqrt(50), rel=0.1)


def test_seeds_that_differ_widen_the_interval():
    """Four seeds with hardly any error of their own: the interval is that of their spread."""
    rng = np.random.default_rng(5)
    name = ("loss", "all")
    means = [0.10, 0.14, 0.18, 0.22]
    parts = [Evidence(("all",), {name: m}, {name: m + 1e-4 * rng.normal(size=1000)}) for m in means]
    found = combine(parts)
    assert found.values[name] == pytest.approx(0.16) and found.seeds == 4
    assert found.draws[name].std() == pytest.approx(np.std(means, ddof=1) / 2, rel=0.1)

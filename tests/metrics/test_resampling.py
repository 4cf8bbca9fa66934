"""Intervals against repeated sampling, and against a bootstrap that resamples the samples themselves."""

import numpy as np
import pytest

from tood.metrics import auroc
from tood.metrics.resampling import Samples, TaskScores, interval


def loss_of(known, unknown):
    """The mean loss of three tasks between two steps, [2, 3, n] and [2, m], with its resamples."""
    samples, size = Samples(), known.shape[2]
    tasks = np.repeat(np.arange(3), size)
    indices = np.concatenate([samples.indices(("id", task), size) for task in range(3)])
    ood = samples.indices("ood", unknown.shape[1])
    for step, sign in ((0, 1), (1, -1)):
        scores = TaskScores(known[step].ravel(), tasks, indices)
        samples.add_auroc("loss", np.full(3, sign / 3), scores, unknown[step], ood)
    return samples.drawn()["loss"]


def drawn(rng, n=60, m=120):
    """The same images at both steps: their noise is shared in part."""
    shared, shared_ood = rng.normal(size=(3, n)), rng.normal(size=m)
    known = np.stack([1.8 + shared + 0.5 * rng.normal(size=(3, n)), 0.9 + shared + 0.5 * rng.normal(size=(3, n))])
    return known, np.stack([shared_ood + 0.5 * rng.normal(size=m) for _ in range(2)])


def test_value_is_the_mean_of_aurocs():
    known, unknown = drawn(np.random.default_rng(0))
    known = np.round(known, 1)  # with ties
    expected = np.mean([auroc(known[0, i], unknown[0]) - auroc(known[1, i], unknown[1]) for i in range(3)])
    assert loss_of(known, unknown)[0] == pytest.approx(expected, abs=1e-12)


def test_spread_of_the_draws_is_that_of_repeated_sampling():
    rng = np.random.default_rng(1)
    losses = [loss_of(*drawn(rng)) for _ in range(300)]
    claimed = np.mean([loss[1:].std() for loss in losses])
    assert claimed == pytest.approx(np.std([loss[0] for loss in losses]), rel=0.12)


def test_draws_agree_with_resampling_the_samples_themselves():
    rng = np.random.default_rng(2)
    known, unknown = drawn(rng)
    values = []
    for _ in range(400):
        rows, ood = rng.integers(60, size=(3, 60)), rng.integers(120, size=120)
        picked = np.take_along_axis(known, np.broadcast_to(rows, known.shape), axis=2)
        values.append(loss_of(picked, unknown[:, ood])[0])
    draws = loss_of(known, unknown)[1:]
    assert draws.std() == pytest.approx(np.std(values), rel=0.12)
    assert np.quantile(draws, [0.025, 0.975]) == pytest.approx(np.quantile(values, [0.025, 0.975]), abs=0.015)


def test_a_difference_of_equal_scores_has_no_spread():
    """A sample has the same weight for every score: what two scores have in common cancels."""
    known, unknown = drawn(np.random.default_rng(3))
    samples = Samples()
    scores = TaskScores(known[0, 0], np.zeros(60, dtype=int), samples.indices("id", 60))
    for name in ("a", "b"):
        samples.add_auroc(name, np.ones(1), scores, unknown[0], samples.indices("ood", 120))
    both = samples.drawn()
    np.testing.assert_allclose(both["a"] - both["b"], 0, atol=1e-12)


def test_a_mean_over_part_of_a_block():
    samples = Samples()
    values = np.random.default_rng(4).normal(size=50)
    samples.add_mean("mean", 2.0, values, samples.indices("id", 100)[:50])
    found = interval(samples.drawn()["mean"])
    assert found.value == pytest.approx(2 * values.mean())
    assert found.high - found.low == pytest.approx(2 * 2 * 1.96 * values.std() / np.sqrt(50), rel=0.1)

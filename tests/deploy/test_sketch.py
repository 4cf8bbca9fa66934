import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import median_abs_deviation

from tood import ToodError
from tood.deploy.sketch import Sketch


def filled(values, capacity, seed):
    """The values in random order and batches, half of them by way of another sketch."""
    rng = np.random.default_rng(seed)
    values = rng.permutation(values)
    sketches = Sketch(capacity), Sketch(capacity)
    for i, batch in enumerate(np.array_split(values, rng.integers(1, 40))):
        sketches[i % 2].add(batch)
    sketches[0].merge(sketches[1])
    return sketches[0]


def ranks(values, x):
    """The lowest and the highest rank of ``x``, as shares."""
    return (values < x).mean(), (values <= x).mean()


@given(st.lists(st.floats(-1e6, 1e6) | st.just(0.0), min_size=1, max_size=80), st.integers(0, 1000))
@settings(deadline=None)
def test_without_a_capacity_it_is_exact(values, seed):
    values = np.array(values)
    sketch = filled(values, None, seed)
    assert sketch.rank_error == 0 and sketch.held == len(values)
    assert sketch.median() == np.median(values)
    assert sketch.mad() == median_abs_deviation(values)
    assert sketch.statistics() == filled(values, None, seed + 1).statistics()
    np.testing.assert_allclose(
        [sketch.statistics()["mean"], sketch.statistics()["std"]], [values.mean(), values.std()], atol=1e-9
    )


@pytest.mark.parametrize("capacity", [2, 8, 64])
@pytest.mark.parametrize("seed", range(4))
def test_a_sketch_keeps_within_the_error_it_states(capacity, seed):
    rng = np.random.default_rng(seed)
    n = 20_000
    values = [
        rng.normal(size=n),
        rng.exponential(size=n),
        rng.integers(0, 9, n).astype(float),
        np.concatenate([np.zeros(n // 2), 1e6 + rng.normal(size=n // 2)]),
    ][seed]
    sketch = filled(values, capacity, seed)
    assert sketch.count == n
    error = sketch.rank_error
    assert 0 < error <= (1 + np.log2(n / capacity)) / (4 * capacity)
    assert sketch.held <= 2 * capacity * len(sketch.levels) and len(sketch.levels) <= 1 + np.log2(n / capacity)
    low, high = ranks(values, sketch.median())
    assert low <= 0.5 + error and high >= 0.5 - error
    low, high = ranks(np.abs(values - sketch.median()), sketch.mad())
    assert low <= 0.5 + 2 * error and high >= 0.5 - 2 * error
    statistics = sketch.statistics()
    np.testing.assert_allclose([statistics["mean"], statistics["std"]], [values.mean(), values.std()], rtol=1e-10)


def test_every_rank_not_only_the_median_is_within_the_error():
    rng = np.random.default_rng(0)
    values = rng.normal(size=50_000)
    sketch = filled(values, 32, 1)
    kept, weights = sketch._weighted()
    grid = np.linspace(-4, 4, 200)
    ours = np.array([weights[kept <= x].sum() for x in grid]) / len(values)
    true = np.searchsorted(np.sort(values), grid, side="right") / len(values)
    assert np.abs(ours - true).max() <= sketch.rank_error


def test_state_is_everything():
    sketch = filled(np.random.default_rng(0).normal(size=5000), 16, 0)
    copy = Sketch.from_state(16, sketch.state())
    for each in (sketch, copy):
        each.add(np.arange(100.0))
    assert copy.statistics() == sketch.statistics() and copy.rank_error == sketch.rank_error


def test_bad_input_is_named():
    with pytest.raises(ToodError, match="capacity"):
        Sketch(1)
    with pytest.raises(ToodError, match="found none"):
        Sketch().median()

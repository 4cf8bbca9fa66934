import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chi2, chisquare

from tood.errors import ToodError
from tood.learners.memory import Exemplars, Reservoir
from tood.outputs.sampling import class_share, draw_by_class, herding


def naive_herding(features, count):
    """iCaRL's Algorithm 4 as it is written down, one candidate at a time."""
    unit = [f / np.linalg.norm(f) for f in features]
    mean = sum(unit) / len(unit)
    chosen = []
    for k in range(1, count + 1):
        best, nearest = None, np.inf
        for i, f in enumerate(unit):
            if i in chosen:
                continue
            candidate = (f + sum((unit[j] for j in chosen), np.zeros_like(mean))) / k
            distance = np.linalg.norm(mean - candidate)
            if distance < nearest:
                best, nearest = i, distance
        chosen.append(best)
    return chosen


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10**6), n=st.integers(3, 25), d=st.integers(2, 8), scale=st.sampled_from([1e-3, 1, 1e3]))
def test_herding_equals_brute_force(seed, n, d, scale):
    """From three samples on: two are always equally far from their mean."""
    features = scale * (np.random.default_rng(seed).normal(size=(n, d)) + 0.5)
    assert herding(features, n).tolist() == naive_herding(features, n)


def test_a_shorter_herding_is_a_prefix_and_a_longer_one_takes_all():
    features = np.random.default_rng(0).normal(size=(30, 5)).astype(np.float32)
    full = herding(features, 100)
    assert sorted(full.tolist()) == list(range(30))
    assert herding(features, 7).tolist() == full[:7].tolist()


def test_draws_have_the_same_number_of_every_class():
    rng = np.random.default_rng(0)
    labels = rng.permutation(np.repeat([3, 5, 9], [50, 20, 4]))
    rows = np.arange(1000, 1074)
    drawn = draw_by_class(rows, labels, 10, rng)
    assert len(np.unique(drawn)) == len(drawn)
    assert [int(np.sum(labels[drawn - 1000] == c)) for c in (3, 5, 9)] == [10, 10, 4]
    with pytest.raises(ToodError, match="a memory of 2 cannot hold one sample of each of 3 classes"):
        class_share(2, 3)
    with pytest.raises(ToodError, match="at least one class"):
        draw_by_class(np.array([], int), np.array([], int), 2, rng)


def test_draws_are_uniform_within_a_class():
    rng = np.random.default_rng(1)
    counts = np.zeros(12)
    for _ in range(3000):
        counts[draw_by_class(np.arange(12), np.zeros(12, int), 3, rng)] += 1
    assert chisquare(counts).pvalue > 1e-3


@pytest.mark.parametrize("chunk", [3, 7, 60])
def test_a_reservoir_holds_every_row_with_the_same_probability(chunk):
    n, capacity, repeats = 60, 10, 1000
    counts = np.zeros(n)
    for seed in range(repeats):
        memory = Reservoir(capacity, seed=seed)
        for start in range(0, n, chunk):
            memory.offer(np.arange(start, min(start + chunk, n)))
        assert len(np.unique(memory.rows)) == capacity
        counts[memory.rows] += 1
    # Draws without repetition: the usual statistic, scaled by their smaller variance, is chi-square.
    share = capacity / n
    statistic = ((counts - repeats * share) ** 2).sum() / (repeats * share * (1 - share) * n / (n - 1))
    assert 1e-3 < chi2.sf(statistic, n - 1) < 1 - 1e-3


@settings(max_examples=50, deadline=None)
@given(seed=st.integers(0, 1000), sizes=st.lists(st.integers(0, 20), max_size=12), capacity=st.integers(1, 15))
def test_slots_say_where_each_row_went(seed, sizes, capacity):
    """What a learner stores beside the rows, written by slot, stays beside them."""
    memory = Reservoir(capacity, seed)
    beside = np.full(capacity, -1)
    offered = 0
    for size in sizes:
        rows = np.arange(offered, offered + size)
        slots = memory.offer(rows)
        kept = slots >= 0
        assert len(np.unique(slots[kept])) == kept.sum()
        beside[slots[kept]] = rows[kept]
        offered += size
        np.testing.assert_array_equal(beside[: len(memory)], memory.rows)
    assert (len(memory), memory.seen) == (min(offered, capacity), offered)


def test_a_reservoir_goes_on_from_its_state():
    whole, half = Reservoir(5, seed=3), Reservoir(5, seed=3)
    for start in (0, 10, 20):
        whole.offer(np.arange(start, start + 10))
    for start in (0, 10):
        half.offer(np.arange(start, start + 10))
    other = Reservoir(5, seed=3)
    other.load_state_dict(half.state_dict())
    other.offer(np.arange(20, 30))
    assert other.rows.tolist() == whole.rows.tolist()


def add_tasks(memory, tasks, features=None):
    for task in range(tasks):
        rows = np.arange(40 * task, 40 * task + 40)
        memory.add(rows, 2 * task + np.arange(40) % 2, None if features is None else features[rows])
    return memory


@pytest.mark.parametrize("selection", ["random", "herding"])
def test_a_fixed_total_is_shared_and_shrinking_keeps_the_best(selection):
    features = np.random.default_rng(0).normal(size=(120, 4))
    memory = Exemplars(20, selection=selection)
    memory.add(np.arange(40), np.arange(40) % 2, features[:40])
    before = memory.rows
    assert memory.labels.tolist() == [0] * 10 + [1] * 10
    memory.add(np.arange(40, 80), 2 + np.arange(40) % 2, features[40:80])
    memory.add(np.arange(80, 120), 4 + np.arange(40) % 2, features[80:])
    assert len(memory) == 6 * 3  # floor(20 / 6)
    assert memory.labels.tolist() == np.repeat(np.arange(6), 3).tolist()
    assert memory.rows[:6].tolist() == [*before[:3], *before[10:13]]
    assert (memory.rows % 2 == memory.labels % 2).all()  # every row is of the class it stands under
    if selection == "herding":
        members = np.arange(0, 40, 2)
        assert memory.rows[:3].tolist() == members[naive_herding(features[members], 3)].tolist()


def test_a_fixed_number_of_each_class_never_shrinks():
    memory = add_tasks(Exemplars(7, per_class=True), 3)
    assert len(memory) == 42
    assert len(add_tasks(Exemplars(500, per_class=True), 1)) == 40  # a class gives all it has


def test_random_exemplars_depend_on_class_and_seed_alone():
    one = add_tasks(Exemplars(5, per_class=True, seed=1), 3)
    two = Exemplars(5, per_class=True, seed=1)
    two.add(np.arange(80, 120), 4 + np.arange(40) % 2)
    assert one.rows[one.labels == 4].tolist() == two.rows[two.labels == 4].tolist()
    other = add_tasks(Exemplars(5, per_class=True, seed=2), 3)
    assert one.rows.tolist() != other.rows.tolist()


def test_exemplars_go_on_from_their_state():
    memory = add_tasks(Exemplars(12), 2)
    other = Exemplars(12)
    other.load_state_dict(memory.state_dict())
    for m in (memory, other):
        m.add(np.arange(80, 120), 4 + np.arange(40) % 2)
    assert other.rows.tolist() == memory.rows.tolist()
    assert other.labels.tolist() == memory.labels.tolist()
    assert len(Exemplars(3).rows) == 0

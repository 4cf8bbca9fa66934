"""Against the paper's sums written out, and numbers worked by hand."""

import statistics

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tood import ToodError, Trajectory
from tood.metrics import accuracy_forgetting, average_incremental_accuracy, mean_std

NAN = float("nan")


def cube(steps, sets=None, seed=0):
    values = np.random.default_rng(seed).uniform(size=(steps, steps) if sets is None else (steps, steps, sets))
    values[np.triu_indices(steps, 1)] = np.nan
    return values


@given(st.integers(1, 7), st.integers(1, 4), st.integers(0, 99))
def test_the_equations_written_out(steps, sets, seed):
    values = cube(steps, sets, seed)
    tr = Trajectory(values)
    n = steps - 1  # the paper counts tasks 0 to N

    def bar(t, i):
        return sum(values[t, i, d] for d in range(sets)) / sets

    average = sum(sum(bar(t, i) for i in range(t + 1)) / (t + 1) for t in range(n + 1)) / (n + 1)
    at_learning = [bar(i, i) - bar(n, i) for i in range(n)]
    peak = [max(bar(t, i) for t in range(i, n)) - bar(n, i) for i in range(n)]
    assert tr.average() == pytest.approx(average, abs=1e-14)
    assert tr.forgetting() == pytest.approx(at_learning, abs=1e-14)
    assert tr.forgetting(definition="peak") == pytest.approx(peak, abs=1e-14)
    assert tr.average_forgetting() == pytest.approx(sum(at_learning) / max(n, 1), abs=1e-14)
    assert tr.average_forgetting("peak") == pytest.approx(sum(peak) / max(n, 1), abs=1e-14)


def test_by_hand():
    values = [[0.75, NAN, NAN], [1.0, 0.5, NAN], [0.5, 0.75, 1.0]]
    tr = Trajectory(values)
    assert tr.by_step().tolist() == [0.75, 0.75, 0.75]
    assert tr.average() == 0.75
    assert tr.forgetting().tolist() == [0.25, -0.25]
    assert tr.forgetting("peak").tolist() == [0.5, -0.25]  # the final step is no part of the peak
    assert tr.average_forgetting() == 0.0
    assert tr.average_forgetting("peak") == 0.125
    assert accuracy_forgetting(values).tolist() == [0.5, -0.25]
    assert average_incremental_accuracy(values) == 0.75


def test_one_step_forgets_nothing():
    tr = Trajectory([[0.5]])
    assert tr.average() == 0.5
    assert tr.forgetting().shape == tr.forgetting("peak").shape == (0,)
    assert tr.average_forgetting() == tr.average_forgetting("peak") == 0.0


def test_tensors_lists_and_arrays_are_alike():
    values = cube(4, 2)
    for other in (torch.from_numpy(values), values.tolist(), Trajectory(values).values):
        assert Trajectory(other).average() == Trajectory(values).average()


def test_the_values_are_a_copy_that_cannot_change():
    values = cube(3)
    tr = Trajectory(values)
    before = tr.average()
    values[0, 0] = 7.0
    assert tr.average() == before
    with pytest.raises(ValueError, match="read-only"):
        tr.values[0, 0] = 7.0


def test_near_and_far():
    values = cube(6, 6)
    groups = ["near", "far", "far", "near", "far", "far"]
    tr = Trajectory(values, groups=groups)
    near, far = values[:, :, [0, 3]].mean(axis=2), values[:, :, [1, 2, 4, 5]].mean(axis=2)
    assert tr.group("near").average() == pytest.approx(Trajectory(near).average(), abs=1e-15)
    assert tr.group("far").average() == pytest.approx(Trajectory(far).average(), abs=1e-15)
    halves = (Trajectory(near).average() + Trajectory(far).average()) / 2
    assert tr.balanced().average() == pytest.approx(halves, abs=1e-15)
    # Eq. avg_auroc weighs each set alike: two near, four far.
    weighted = (2 * Trajectory(near).average() + 4 * Trajectory(far).average()) / 6
    assert tr.average() == pytest.approx(weighted, abs=1e-15)
    assert tr.balanced().forgetting("peak") == pytest.approx(Trajectory((near + far) / 2).forgetting("peak"))


def test_groups_errors():
    with pytest.raises(ToodError, match="groups: expected one for each of 2 OOD sets, found 1"):
        Trajectory(cube(3, 2), groups=["near"])
    with pytest.raises(ToodError, match="groups: expected one for each of 0"):
        Trajectory(cube(3), groups=["near"])
    with pytest.raises(ToodError, match="did you mean 'near'"):
        Trajectory(cube(3, 1), groups=["near"]).group("nearer")
    with pytest.raises(ToodError, match="groups: expected the group of each OOD set"):
        Trajectory(cube(3, 2)).balanced()


@pytest.mark.parametrize(
    ("values", "found"),
    [
        ([[0.5, 0.5], [0.5, 0.5]], "expected NaN, as that task is not seen yet, at step 0, task 1, found 0.5"),
        ([[0.5, NAN], [NAN, 0.5]], "expected a finite number, at step 1, task 0, found nan"),
        ([[0.5, NAN], [np.inf, 0.5]], "expected a finite number, at step 1, task 0, found inf"),
        ([[0.5, np.inf], [0.5, 0.5]], "expected NaN"),
        (np.ones((1, 1, 0)), "shape"),
        (np.ones((2, 3)), "shape"),
        (np.ones((0, 0)), "shape"),
        (np.ones(3), "shape"),
        (np.ones((1, 1, 1, 1)), "shape"),
        ([[0.5], [0.5, 0.5]], "one length"),
        ([["a"]], "real numbers"),
    ],
)
def test_bad_values(values, found):
    with pytest.raises(ToodError, match=f"^values: .*{found}"):
        Trajectory(values)
    for function in (accuracy_forgetting, average_incremental_accuracy):
        with pytest.raises(ToodError, match=f"^accuracy: .*{found}"):
            function(values)


def test_bad_definition_and_accuracy_cube():
    with pytest.raises(ToodError, match="unknown definition 'peaks'; did you mean 'peak'"):
        Trajectory(cube(2)).forgetting("peaks")
    with pytest.raises(ToodError, match=r"accuracy: expected \[T, T\]"):
        accuracy_forgetting(cube(2, 3))


@given(st.lists(st.floats(-1, 1), min_size=2, max_size=9))
def test_mean_std_of_numbers(values):
    mean, std = mean_std(values)
    assert mean == pytest.approx(statistics.mean(values), abs=1e-12)
    assert std == pytest.approx(statistics.stdev(values), abs=1e-12)


def test_mean_std_of_one_seed_of_arrays_and_of_trajectories():
    assert mean_std([0.25]) == (0.25, 0.0)
    runs = [Trajectory(cube(4, 2, seed)) for seed in range(3)]
    mean, std = mean_std(runs)
    stacked = [run.values[3, 1, 1] for run in runs]
    assert mean[3, 1, 1] == pytest.approx(statistics.mean(stacked))
    assert std[3, 1, 1] == pytest.approx(statistics.stdev(stacked))
    assert Trajectory(mean).average() == pytest.approx(mean_std([run.average() for run in runs])[0])
    assert mean_std([run.forgetting() for run in runs])[1].shape == (3,)
    with pytest.raises(ToodError, match="found none"):
        mean_std([])
    with pytest.raises(ToodError, match="one shape"):
        mean_std([np.ones(2), np.ones(3)])

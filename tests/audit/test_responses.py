"""Responses against closed forms."""

from types import SimpleNamespace

import numpy as np
import pytest

from tood.audit.responses import Responses, levels, response, restored


def given(height, spread=1.0, count=5000):
    """Scores of a task of two classes, and of a class of another task, whose own classes stand out by a height."""
    classes = np.repeat([0, 1, 2], count)
    own = classes[:, None] == np.arange(2)
    return spread * np.random.default_rng(0).normal(size=own.shape) + height * spread * own, own


def test_a_response_is_the_height_in_units_of_the_spread_whatever_the_level():
    scores, own = given(5.0, spread=3.0)
    found = response(scores, own)
    assert found.value == pytest.approx(5.0, rel=0.02) and found.spread == pytest.approx(3.0, rel=0.02)
    assert response(scores - 40, own).value == pytest.approx(found.value)
    assert response(np.ones((4, 1)), np.ones((4, 1), dtype=bool)) is None  # no others to compare with


def falls(before, now, features=()):
    """What the logits of task 0 fell between two steps, and what of it the features do not explain."""
    found = Responses(2)
    step = SimpleNamespace(partition=SimpleNamespace(tasks=[[0, 1]]))
    rows = np.arange(len(before[0]))
    for kind, pair in (("logits", (before, now)), ("features", features)):
        for index, (scores, own) in enumerate(pair):
            step.index, step.test = index, SimpleNamespace(labels=np.where(own.any(axis=1), own.argmax(axis=1), 2))
            found._add(kind, step, 0, scores, rows)
    return found.falls(features=False)[0], found.falls(features=True)[0]


def test_what_fell_is_zero_for_a_task_that_only_sank_or_shrank():
    scores, own = given(6.0)
    assert falls((scores, own), (0.5 * scores - 7, own)) == pytest.approx((0.0, 0.0), abs=1e-9)


def test_what_fell_is_divided_by_what_the_features_lost():
    before, now = given(6.0), given(3.0)
    assert falls(before, now) == pytest.approx((3.0, 3.0), abs=0.1)
    assert falls(before, now, features=(before, now)) == pytest.approx((3.0, 0.0), abs=0.1)
    assert falls(before, now, features=(before, before)) == pytest.approx((3.0, 3.0), abs=0.1)


def test_restoring_lowers_a_channel_for_all_but_its_own_samples():
    energies, fell = np.array([[1.0, 0.0], [1.0, 0.0], [1.0, -3.0]]), np.array([2.0, 0.0])
    assert restored(energies, fell, np.array([0, 1, 1])).tolist() == [1, 0, -1]
    assert restored(energies, fell).tolist() == [0, 0, -1]


def test_levels_that_differ_by_chance_are_left_alone():
    rng = np.random.default_rng(0)
    tasks = np.repeat(np.arange(4), 30)
    known = rng.normal(size=(120, 4))
    means = [known[tasks == i, i].mean() for i in range(4)]
    assert np.abs(levels(known, tasks)).max() < 0.8 * np.abs(means - np.mean(means)).max()
    known[np.arange(120), tasks] += 100 * tasks
    assert levels(known, tasks) == pytest.approx(100 * (np.arange(4) - 1.5), abs=1)

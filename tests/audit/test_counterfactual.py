"""Responses and what their errors do, against closed forms and resamples."""

import numpy as np
import pytest

from tood.audit.counterfactual import Change, fallen, levels, response, restored, share_left, slopes
from tood.metrics import auroc

WHOLE = Change(1.0, ())


def given(height, spread=1.0, count=200, seed=0):
    """Scores of a task of two classes, and of a class of another task, whose own classes stand out by a height."""
    rng = np.random.default_rng(seed)
    classes = np.repeat([0, 1, -1], count)
    scores = spread * rng.normal(size=(len(classes), 2))
    scores[np.arange(len(classes)), classes] += np.where(classes >= 0, height * spread, 0)
    return scores, classes, np.arange(len(classes))


def test_a_response_is_the_height_in_units_of_the_spread_whatever_the_level():
    scores, classes, places = given(5.0, spread=3.0, count=5000)
    found = response(scores, classes, places)
    assert found.value == pytest.approx(5.0, rel=0.02) and found.spread == pytest.approx(3.0, rel=0.02)
    assert response(scores - 40, classes, places).value == pytest.approx(found.value)


def test_a_class_without_others_has_no_response():
    assert response(np.ones((4, 1)), np.zeros(4, dtype=int), np.arange(4)) is None


def test_what_fell_is_zero_for_a_task_that_only_sank_or_shrank():
    first = response(*given(6.0))
    scores, classes, places = given(6.0)
    assert fallen(first, response(0.5 * scores - 7, classes, places), WHOLE).value == pytest.approx(0.0, abs=1e-9)


def test_what_fell_is_divided_by_what_the_features_lost():
    before, now = response(*given(6.0, count=5000)), response(*given(3.0, count=5000))
    assert fallen(before, now, WHOLE).value == pytest.approx(3.0, abs=0.1)
    half = share_left(before, now)
    assert half.value == pytest.approx(0.5, abs=0.02)
    assert fallen(before, now, half).value == pytest.approx(0.0, abs=1e-9)


@pytest.mark.parametrize("with_features", [False, True])
def test_parts_give_the_spread_of_resamples(with_features):
    """The first-order error equals the standard deviation over samples drawn anew, of the same images."""

    def fall(seed):
        scores, classes, places = given(6.0, count=60, seed=seed)
        later = np.random.default_rng((1, seed)).normal(size=scores.shape) + 0.6 * scores
        before, now = response(scores, classes, places), response(later, classes, places)
        features = response(*given(4.0, count=60, seed=seed + 5000)), response(*given(3.0, count=60, seed=seed + 9000))
        return fallen(before, now, share_left(*features) if with_features else WHOLE)

    drawn = np.std([fall(seed).value for seed in range(400)])
    predicted = []
    for change in (fall(seed) for seed in range(20)):
        total = [np.zeros(180), np.zeros(180)]  # the features are of other samples here
        for number, (places, parts) in enumerate(change.influences):
            total[number >= 2][places] += parts
        predicted.append(np.sqrt(sum(np.sum(parts**2) for parts in total)))
    assert np.mean(predicted) == pytest.approx(drawn, rel=0.15)


def test_restoring_lowers_a_channel_for_all_but_its_own_samples():
    energies = np.zeros((3, 2))
    assert restored(energies, np.array([2.0, 0.0]), np.array([0, 1, 1])).tolist() == [[0, 0], [-2, 0], [-2, 0]]
    assert restored(energies, np.array([2.0, 0.0]))[:, 0].tolist() == [-2, -2, -2]


@pytest.mark.parametrize("own", [True, False])
def test_slopes_are_those_of_the_auroc(own):
    rng = np.random.default_rng(0)
    tasks = np.repeat([0, 1, 2], 2000)
    known, unknown = rng.normal(size=(6000, 3)), rng.normal(size=(6000, 3))
    known[np.arange(6000), tasks] += 1.5
    weights = np.array([0.5, 0.5, 0.0])

    def value(channel, moved):
        ours, theirs = known.copy(), unknown.copy()
        ours[(tasks != channel) | own, channel] -= moved
        theirs[:, channel] -= moved
        return sum(w * auroc(ours[tasks == i].max(axis=1), theirs.max(axis=1)) for i, w in enumerate(weights))

    expected = [(value(channel, 0.05) - value(channel, -0.05)) / 0.1 for channel in range(3)]
    assert slopes(known, tasks, unknown, weights, 0.05, own) == pytest.approx(expected, abs=0.01)


def test_levels_that_differ_by_chance_are_left_alone():
    rng = np.random.default_rng(0)
    tasks = np.repeat(np.arange(4), 30)
    known = rng.normal(size=(120, 4))
    shift, parts, _ = levels(known, tasks)
    means = [known[tasks == i, i].mean() for i in range(4)]
    assert np.abs(shift).max() <= np.ptp(means) and parts.sum() == pytest.approx(0, abs=1e-12)
    known[np.arange(120), tasks] += 100 * tasks
    assert levels(known, tasks)[0] == pytest.approx(100 * (np.arange(4) - 1.5), abs=1)

from itertools import permutations

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

from tood import ToodError
from tood.metrics import augrc, aurc


def problem(rows, seed, ties):
    rng = np.random.default_rng(seed)
    scores = rng.normal(size=rows)
    return scores.round(0) if ties else scores, rng.random(rows) < 0.6


def brute_aurc(correct):
    """The definition, for answers sorted by falling score."""
    wrong = [not right for right in correct]
    return np.mean([sum(wrong[:k]) / k for k in range(1, len(wrong) + 1)])


@pytest.mark.parametrize("seed", range(5))
def test_aurc_is_its_definition(seed):
    scores, correct = problem(200, seed, ties=False)
    assert aurc(scores, correct) == pytest.approx(brute_aurc(correct[np.argsort(-scores)]), rel=1e-12)


@pytest.mark.parametrize("seed", range(3))
def test_equal_scores_count_in_the_mean_of_their_orders(seed):
    scores, correct = problem(6, seed, ties=True)
    orders = [list(order) for order in permutations(range(6)) if (np.diff(scores[list(order)]) <= 0).all()]
    assert len(orders) > 1
    assert aurc(scores, correct) == pytest.approx(np.mean([brute_aurc(correct[order]) for order in orders]), rel=1e-12)


@pytest.mark.parametrize("ties", [False, True])
def test_augrc_is_its_closed_form_and_the_area_of_its_curve(ties):
    scores, correct = problem(300, 0, ties)
    error = 1 - correct.mean()
    expected = error**2 / 2 + error * (1 - error) * (1 - roc_auc_score(correct, scores))
    assert augrc(scores, correct) == pytest.approx(expected, rel=1e-12)
    limits = np.concatenate([[np.inf], np.unique(scores)[::-1]])
    coverage = [np.mean(scores >= limit) for limit in limits]
    risk = [np.mean((scores >= limit) & ~correct) for limit in limits]
    assert augrc(scores, correct) == pytest.approx(np.trapezoid(risk, coverage), rel=1e-12)


def test_ends_of_the_scale_and_other_arrays():
    torch = pytest.importorskip("torch")
    scores, correct = problem(50, 1, ties=False)
    assert aurc(scores, np.ones(50, bool)) == augrc(scores, np.ones(50, bool)) == 0
    assert aurc(scores, np.zeros(50, bool)) == 1 and augrc(scores, np.zeros(50, bool)) == 0.5
    assert aurc(torch.tensor(scores), torch.tensor(correct)) == aurc(scores.tolist(), correct.tolist())
    with pytest.raises(ToodError, match="correct: expected 50 bools, found int64"):
        aurc(scores, correct.astype(int))


@pytest.mark.parametrize("metric", [aurc, augrc])
def test_bad_scores_are_an_error_that_names_them(metric):
    with pytest.raises(ToodError, match="scores: expected at least one score, found none"):
        metric([], np.empty(0, bool))
    with pytest.raises(ToodError, match=r"scores: expected finite numbers, found nan at \(1,\)"):
        metric([1.0, np.nan], [True, False])
    with pytest.raises(ToodError, match=r"correct: expected 2 bools, found bool \(1,\)"):
        metric([1.0, 2.0], [True])

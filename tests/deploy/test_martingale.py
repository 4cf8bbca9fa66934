import numpy as np
import pytest
from scipy.integrate import quad
from scipy.stats import binom, chisquare, kstest

from tood.deploy.martingale import ExchangeabilityTest, lower_bets, two_sided_bets

STREAMS, LENGTH = 300, 1000


@pytest.mark.parametrize("bets", [two_sided_bets, lower_bets(0.05)])
def test_every_bet_is_fair(bets):
    for bet in range(bets(np.zeros(1)).shape[1]):
        area, _ = quad(lambda p, bet=bet: bets(np.array([p]))[0, bet], 0, 1, points=[0.05, 0.5])
        assert area == pytest.approx(1, abs=1e-9)
        assert bets(np.linspace(0, 1, 101)).min() >= 0


@pytest.mark.parametrize("reference", [0, 1, 5, 40])
@pytest.mark.parametrize("digits", [None, 0])
def test_p_values_are_uniform_and_independent_for_any_reference_and_with_ties(reference, digits):
    """600 streams of 8: each step is uniform, and so is the joint distribution of two steps."""
    rng = np.random.default_rng(reference)
    draw = lambda n: rng.normal(size=n) if digits is None else rng.normal(size=n).round(digits)  # noqa: E731
    p = np.array([ExchangeabilityTest(draw(reference), two_sided_bets, rng)._p_values(draw(8)) for _ in range(600)])
    for step in range(8):
        assert kstest(p[:, step], "uniform").pvalue > 1e-4
    cells = np.histogram2d(p[:, 0], p[:, 7], bins=3, range=[[0, 1], [0, 1]])[0]
    assert chisquare(cells.ravel()).pvalue > 1e-4


def test_chunks_make_no_difference():
    reference, values = np.random.default_rng(0).normal(size=50), np.random.default_rng(1).normal(size=1000)
    tests = [ExchangeabilityTest(reference, two_sided_bets, np.random.default_rng(1)) for _ in range(2)]
    tests[0].update(values)
    for start in range(0, 1000, 7):
        tests[1].update(values[start : start + 7])
    assert (tests[0].hits == tests[1].hits).all() and tests[0].seen == tests[1].seen == 1000


def test_the_e_value_is_the_product_of_the_bets_by_hand():
    """One bet, four steps: money put into play at step s is 1 / (s (s + 1)), and 1 / 5 is held back after four."""
    p = np.array([0.1, 0.7, 0.4, 0.9])
    test = ExchangeabilityTest(np.empty(0), lambda q: (1 + 0.5 * (1 - 2 * q))[:, None], np.random.default_rng(0))
    test._bet(p, 1)
    test.hits[0] = 4
    factors = 1 + 0.5 * (1 - 2 * p)
    expected = 1 / 5 + sum(np.prod(factors[s - 1 :]) / (s * (s + 1)) for s in range(1, 5))
    assert np.exp(test.log_e_value) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("reference", [20, 200])
@pytest.mark.parametrize("bets", [two_sided_bets, lower_bets(0.05)])
def test_stationary_streams_ever_alarm_no_more_often_than_alpha(reference, bets):
    rng = np.random.default_rng(reference)
    alarms = 0
    for _ in range(STREAMS):
        test = ExchangeabilityTest(rng.normal(size=reference), bets, rng)
        test.update(rng.normal(size=LENGTH))
        alarms += test.largest >= np.log(1 / 0.05)
    assert alarms <= binom.ppf(0.999, STREAMS, 0.05)


def test_a_late_change_is_found_as_well():
    rng = np.random.default_rng(0)
    for before in (0, 20_000):
        test = ExchangeabilityTest(rng.normal(size=500), two_sided_bets, rng)
        test.update(rng.normal(size=before))
        assert test.largest < np.log(100)
        test.update(rng.normal(size=120) - 1)
        assert test.largest > np.log(100)

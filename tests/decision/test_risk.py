import re

import numpy as np
import pytest
import torch
from scipy.stats import beta, binom

from tood import TOOD, ToodError
from tood.decision import Conformal, selective_threshold
from tood.decision.risk import CANDIDATES, binomial_cdf

STREAMS = 400


def test_the_binomial_is_scipys():
    for successes, trials, chance in ((0, 10, 0.3), (3, 10, 0.3), (10, 10, 0.3), (40, 2000, 0.05), (0, 5000, 0.001)):
        assert binomial_cdf(successes, trials, chance) == pytest.approx(binom.cdf(successes, trials, chance), rel=1e-9)


@pytest.mark.parametrize("rounded", [False, True])
def test_the_bound_fails_no_more_often_than_delta(rounded):
    """Error rate (1 - s) / 2 at score s uniform in [0, 1]: (1 - t) / 4 among scores above t, in closed form."""
    rng = np.random.default_rng(0)
    risk, delta, failed, limits = 0.1, 0.1, 0, []
    for _ in range(STREAMS):
        scores = rng.uniform(size=2000)
        wrong = rng.uniform(size=2000) < (1 - scores) / 2
        if rounded:
            scores = np.floor(scores * 20) / 20  # ties; the cell [t, t + 0.05) has the error rate of its middle
        try:
            limit = selective_threshold(scores, wrong, risk, delta)
        except ToodError:
            continue
        true = (1 - (np.ceil(limit * 20) / 20 if rounded else limit)) / 4
        failed += true > risk
        limits.append(limit)
    assert failed <= binom.ppf(0.999, STREAMS, delta)
    assert len(limits) > 0.8 * STREAMS and np.median(limits) < 0.9


def test_a_candidate_passes_when_its_clopper_pearson_bound_does():
    scores = -np.arange(3200.0)
    wrong = np.zeros(3200, dtype=bool)
    wrong[[50, 500, 1000, *range(2000, 2100)]] = True
    limit = selective_threshold(scores, wrong, risk=0.01, delta=0.1)
    passing = []
    for accepted in range(100, 3201, 100):
        errors = wrong[:accepted].sum()
        if beta.ppf(1 - 0.1 / CANDIDATES, errors + 1, accepted - errors) <= 0.01:
            passing.append(accepted)
    assert (scores >= limit).sum() == passing[-1] and 0 < passing[-1] < 3200


def test_conformal_keeps_the_errors_of_its_samples(tmp_path):
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 4, 800)
    logits = rng.normal(size=(800, 4)) + 2 * np.eye(4)[labels]
    cal = TOOD([[0, 1], [2, 3]]).fit(logits[:400], labels[:400])
    conformal = Conformal(cal).fit(logits[400:], labels[400:])
    conformal.save(tmp_path / "c")
    wrong = logits[400:].argmax(axis=1) != labels[400:]
    expected = selective_threshold(cal.score(logits[400:]), wrong, risk=0.3)
    assert Conformal.load(tmp_path / "c").risk_threshold(0.3) == expected
    with pytest.raises(ToodError, match="needs labelled samples"):
        Conformal(cal).fit(logits[400:]).risk_threshold(0.3)


def test_five_percent_with_confidence_ninety_is_the_default():
    rng = np.random.default_rng(1)
    labels = rng.integers(0, 4, 4000)
    logits = rng.normal(size=(4000, 4)) + 3 * np.eye(4)[labels]
    cal = TOOD([[0, 1], [2, 3]]).fit(logits[:400], labels[:400])
    scores, wrong = cal.score(logits[400:]), logits[400:].argmax(axis=1) != labels[400:]
    limit = Conformal(cal).fit(logits[400:], labels[400:]).risk_threshold()
    assert limit == selective_threshold(scores, wrong) == selective_threshold(scores, wrong, risk=0.05, delta=0.1)
    assert np.isfinite(limit) and wrong[scores >= limit].mean() < 0.05


def test_what_cannot_be_promised_is_refused():
    with pytest.raises(ToodError, match="cannot be guaranteed at any threshold with these 20 samples"):
        selective_threshold(np.arange(20.0), np.zeros(20, dtype=bool), risk=0.05)
    with pytest.raises(ToodError, match="wrong: expected 3 bools"):
        selective_threshold([1.0, 2.0, 3.0], [0, 1, 0])
    with pytest.raises(ToodError, match="risk: expected a share"):
        selective_threshold([1.0], [True], risk=1.0)
    with pytest.raises(ToodError, match="delta: expected a share"):
        selective_threshold(np.arange(500.0), np.zeros(500, dtype=bool), risk=0.1, delta=0.0)


@pytest.mark.parametrize(("risk", "delta"), [(0.05, 0.1), (0.3, 0.5), (0.01, 0.001)])
def test_the_error_says_how_many_samples_are_enough(risk, delta):
    """With n samples and no error, the exact test passes if (1 - risk)^n is at most delta over the 32 thresholds."""
    with pytest.raises(ToodError, match="at least") as error:
        selective_threshold([1.0], [False], risk, delta)
    fewest = int(re.search(r"at least (\d+) must be accepted", str(error.value))[1])
    assert (1 - risk) ** fewest <= delta / CANDIDATES < (1 - risk) ** (fewest - 1)
    assert selective_threshold(np.arange(fewest), np.zeros(fewest, dtype=bool), risk, delta) == -np.inf


def test_the_binomial_never_exceeds_one():
    assert max(binomial_cdf(n, n, chance) for n in range(1, 400) for chance in (0.1, 0.3, 0.7)) == 1.0


def test_the_threshold_is_that_of_a_plain_search():
    rng = np.random.default_rng(0)
    found = 0
    for _ in range(200):
        wrong = rng.random(64) < np.linspace(0.5, 0.0, 64) * rng.random()
        limits = [  # scores are 0 to 63; a candidate accepts a multiple of 64 / 32
            63.5 - accepted
            for accepted in range(2, 65, 2)
            if binom.cdf(wrong[64 - accepted :].sum(), accepted, 0.3) <= 0.5 / 32
        ]
        if not limits:
            with pytest.raises(ToodError, match="cannot be guaranteed"):
                selective_threshold(np.arange(64.0), wrong, risk=0.3, delta=0.5)
            continue
        limit = selective_threshold(np.arange(64.0), wrong, risk=0.3, delta=0.5)
        assert (np.arange(64) >= limit).tolist() == (np.arange(64) >= limits[-1]).tolist()
        found += 1
    assert 20 < found < 200


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_tie_at_the_threshold_is_excluded_in_every_precision(dtype):
    scores, wrong = np.repeat([3.0, 2.1], [4000, 1000]).astype(dtype), np.repeat([False, True], [4000, 1000])
    limit = selective_threshold(scores, wrong, risk=0.05)
    np.testing.assert_array_equal(scores >= limit, ~wrong)
    np.testing.assert_array_equal(torch.from_numpy(scores) >= limit, ~wrong)


def test_the_first_candidate_alone_may_pass():
    wrong = np.arange(3200) < 3100  # only the best 100 of 3,200 scores are right
    assert 3099 < selective_threshold(np.arange(3200.0), wrong, risk=0.4) <= 3100

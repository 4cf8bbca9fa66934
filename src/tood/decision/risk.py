"""Selective risk control: a threshold above which the error rate of the classifier is bounded."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from tood.arrays import as_array, is_tensor
from tood.decision.ranks import check_share, finite
from tood.errors import ToodError

__all__ = ["selective_threshold"]

CANDIDATES = 32  # thresholds that are tested; each costs a little power


def selective_threshold(scores: Any, wrong: Any, risk: float = 0.05, delta: float = 0.1) -> float:
    """The lowest tested threshold whose error rate among accepted inputs is at most ``risk``, with confidence.

    With probability at least ``1 - delta`` over the n samples, ``P(wrong | score >= threshold) <= risk`` for new
    inputs from the same source. The method is by Geifman and El-Yaniv ("Selective classification for deep neural
    networks", NeurIPS 2017): 32 thresholds, one at each 1/32 of the samples, an exact binomial (Clopper-Pearson) test
    for each, Bonferroni over the 32. Given the value of the k-th highest score, the samples above it are independent
    draws from the inputs above it, so their errors are binomial and the test is exact.

    Parameters
    ----------
    scores:
        ``[n]``, higher = more trusted, of samples that neither network nor calibrator was fitted to.
    wrong:
        ``[n]`` bool: the classifier's answer is wrong. Mark unknown inputs as wrong to bound their share too.
    risk:
        The error rate to allow among accepted inputs.
    delta:
        The probability, over the samples, that the bound does not hold.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> scores = rng.uniform(size=2000)
    >>> wrong = rng.uniform(size=2000) < (1 - scores) / 2          # among scores above s: (1 - s) / 4 are wrong
    >>> limit = selective_threshold(scores, wrong, risk=0.1)
    >>> 0.6 < limit < 0.9
    True
    """
    check_share("risk", risk)
    check_share("delta", delta)
    values = finite(scores, "scores")
    errors = np.asarray(wrong.detach().cpu().numpy() if is_tensor(wrong) else as_array(wrong, "wrong"))
    if errors.shape != values.shape or errors.dtype != np.bool_:
        raise ToodError(f"wrong: expected {len(values)} bools, found {errors.dtype} {errors.shape}")
    order = np.argsort(-values, kind="stable")
    values, so_far = values[order], np.cumsum(errors[order])
    higher = np.nextafter(values, np.inf)  # in the precision of the scores, or a comparison rounds it back
    limit = np.inf
    for accepted in np.unique(np.ceil(np.arange(1, CANDIDATES + 1) * len(values) / CANDIDATES).astype(int)):
        # The next value itself is not accepted: the samples strictly above it are.
        lowest = -np.inf if accepted == len(values) else float(higher[accepted])
        above = int(np.searchsorted(-values, -lowest, side="right"))
        if above and binomial_cdf(int(so_far[above - 1]), above, risk) <= delta / CANDIDATES:
            limit = lowest
    if limit == np.inf:
        fewest = math.ceil(math.log(delta / CANDIDATES) / math.log(1 - risk))
        raise ToodError(
            f"risk: an error rate of {risk} cannot be guaranteed at any threshold with these {len(values)} samples "
            f"({errors.mean():.3f} of them are wrong); allow a higher risk, or use more samples: at least {fewest} "
            "must be accepted even if none is wrong"
        )
    return limit


def binomial_cdf(successes: int, trials: int, chance: float) -> float:
    """``P(X <= successes)`` of a binomial variable."""
    i = np.arange(1, successes + 1)
    ratios = np.log((trials - i + 1) / i) + math.log(chance) - math.log1p(-chance)  # of each term to the one before
    log_terms = trials * math.log1p(-chance) + np.cumsum(np.append(0.0, ratios))
    return float(min(1.0, np.exp(log_terms).sum()))

"""Selective classification: how well a score sorts right answers before wrong ones."""

from __future__ import annotations

from typing import Any

import numpy as np

from tood.arrays import Float64Array, as_array, finite, floats, is_tensor
from tood.errors import ToodError


def aurc(scores: Any, correct: Any) -> float:
    """Area under the risk-coverage curve: the mean over k of the error rate among the k highest scores.

    ``1/n Σ_k errors(k) / k`` (Geifman, Uziel and El-Yaniv, ICLR 2019); lower is better. Samples with equal scores count
    in the mean of all their orders.

    Parameters
    ----------
    scores:
        ``[n]``, higher = more trusted.
    correct:
        ``[n]`` bool: the answer is right.

    Examples
    --------
    >>> aurc([3.0, 2.0, 1.0], [True, True, False])          # (0/1 + 0/2 + 1/3) / 3
    0.1111111111111111
    """
    errors = _errors_among_highest(scores, correct)
    return float(np.mean(errors / np.arange(1, len(errors) + 1)))


def augrc(scores: Any, correct: Any) -> float:
    """Area under the generalised risk-coverage curve: the mean share of inputs that are accepted and wrong.

    The curve gives, for each coverage, the share of all inputs that is accepted with a wrong answer; its area is
    ``err² / 2 + err · (1 - err) · (1 - AUROC)``, AUROC being that of right against wrong answers (Traub et al.,
    "Overcoming common flaws in the evaluation of selective classification systems", NeurIPS 2024). Lower is better,
    from 0 to 1/2.

    Parameters
    ----------
    scores:
        ``[n]``, higher = more trusted.
    correct:
        ``[n]`` bool: the answer is right.

    Examples
    --------
    >>> round(augrc([3.0, 2.0, 1.0], [True, True, False]), 4)          # a triangle of 1/3 by 1/3
    0.0556
    """
    errors = np.concatenate([[0.0], _errors_among_highest(scores, correct)])
    rows = len(errors) - 1
    return float((errors[:-1] + errors[1:]).sum() / 2 / rows**2)


def _errors_among_highest(scores: Any, correct: Any) -> Float64Array:
    """``[n]``: the number of errors among the k highest scores, k = 1 to n; linear within equal scores."""
    values = finite(floats(scores, "scores", ndim=1), "scores")
    if len(values) == 0:
        raise ToodError("scores: expected at least one score, found none")
    right = np.asarray(correct.detach().cpu().numpy() if is_tensor(correct) else as_array(correct, "correct"))
    if right.shape != values.shape or right.dtype != np.bool_:
        raise ToodError(f"correct: expected {len(values)} bools, found {right.dtype} {right.shape}")
    order = np.argsort(-values, kind="stable")
    ends = np.flatnonzero(np.append(np.diff(values[order]) != 0, True))  # the last of each group of equal scores
    errors = np.cumsum(~right[order])[ends]
    return np.interp(np.arange(1, len(values) + 1), np.append(0, ends + 1), np.append(0, errors))

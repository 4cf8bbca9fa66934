"""Detectors that read only logits."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np

from tood.arrays import Float64Array, FloatArray
from tood.detectors.base import Detector, FitData, Rows, number, register
from tood.detectors.statistics import class_means, correct_class_means, norms, own_columns, softmax
from tood.energy import exponentials, logsumexp

LOGITS = frozenset({"logits"})
SHIFT = 10_000.0  # added to distances before OpenMax's Weibull fit, as in libMR: their origin then hardly matters


@register
class MSP(Detector):
    """The largest softmax probability."""

    name = "msp"
    title = "MSP"
    needs = LOGITS
    fits_on = "none"
    citation = (
        "Hendrycks and Gimpel, A Baseline for Detecting Misclassified and Out-of-Distribution Examples in Neural "
        "Networks, ICLR 2017"
    )

    def _score(self, rows: Rows, prepared: Any) -> FloatArray:
        values, total, _ = exponentials(rows.logits)
        return own_columns(values, rows.logits.argmax(axis=1)) / total


@register
class MaxLogit(Detector):
    """The largest logit."""

    name = "maxlogit"
    title = "MaxLogit"
    needs = LOGITS
    fits_on = "none"
    citation = "Hendrycks et al., Scaling Out-of-Distribution Detection for Real-World Settings, ICML 2022"

    def _score(self, rows: Rows, prepared: Any) -> FloatArray:
        return own_columns(rows.logits, rows.logits.argmax(axis=1))


@register
class Energy(Detector):
    """Log-sum-exp of the logits at a temperature: ``T · log Σ_c exp(l_c / T)``.

    Parameters
    ----------
    temperature:
        T > 0.
    """

    name = "energy"
    title = "Energy"
    needs = LOGITS
    fits_on = "none"
    citation = "Liu et al., Energy-based Out-of-distribution Detection, NeurIPS 2020"
    temperature: float = number(1.0, 1e-6, 1e6, grid=(1.0,))

    def _score(self, rows: Rows, prepared: Any) -> FloatArray:
        t = float(self.temperature)
        return logsumexp(rows.logits) if t == 1 else logsumexp(rows.logits / t) * t


@register
class GEN(Detector):
    """Generalised entropy of the largest probabilities: ``-Σ_{m largest} p^γ (1-p)^γ``.

    Computed from log-probabilities, and ``1 - p`` of the winner from the other classes, so that a confident network
    does not saturate: in float32, ``1 - p`` taken literally is zero for every logit gap above 17.

    Parameters
    ----------
    gamma:
        γ > 0; small values raise small probabilities.
    m:
        Number of largest probabilities that count; all if there are fewer.
    """

    name = "gen"
    title = "GEN"
    needs = LOGITS
    fits_on = "none"
    citation = "Liu et al., GEN: Pushing the Limits of Softmax-Based Out-of-Distribution Detection, CVPR 2023"
    gamma: float = number(0.1, 1e-6, 1e3, grid=(0.01, 0.1, 0.5, 1.0, 2.0, 5.0, 10.0))
    m: int = number(100, 1, whole=True, grid=(10, 50, 100, 200, 500, 1000))

    def _score(self, rows: Rows, prepared: Any) -> FloatArray:
        gamma, columns = float(self.gamma), rows.logits.shape[1]
        winner = rows.logits.argmax(axis=1)
        each = np.arange(len(winner))
        others = rows.logits - rows.logits[each, winner][:, None]
        others[each, winner] = -np.inf
        if columns == 1:
            return np.zeros(len(others), dtype=others.dtype)
        log_rest = logsumexp(others)  # p of the winner is 1 / (1 + rest)
        log_total = np.logaddexp(0, log_rest)
        of_winner = np.exp(gamma * (log_rest - 2 * log_total))
        first = columns - min(self.m, columns) + 1  # that counts, if they ascend; the winner, now -inf, adds 0
        if first > 1:
            others = np.partition(others, min(first, columns - 1), axis=1)[:, first:]
        logs = others - log_total[:, None]
        return -of_winner - np.exp(gamma * (logs + np.log1p(-np.exp(logs)))).sum(axis=1)


@register
class KLM(Detector):
    """Minus the smallest Kullback-Leibler divergence to a class's typical posterior.

    ``d_k`` is the mean softmax of the fit samples that the network assigns to class k; classes that are never predicted
    are ignored. ``KL(p, d_k) = Σ p log p - p · log d_k``, so one matrix product finds the nearest.
    """

    name = "klm"
    title = "KLM"
    needs = LOGITS
    citation = "Hendrycks et al., Scaling Out-of-Distribution Detection for Real-World Settings, ICML 2022"

    def _fit(self, data: FitData) -> None:
        means, counts = class_means(data, lambda rows: (softmax(rows.logits), rows.logits.argmax(axis=1)))
        self.posteriors_ = means[counts > 0]  # [K, C], of the K classes that were predicted

    def _prepare(self, dtype: np.dtype[Any]) -> FloatArray:
        """``[K, C]``: log d_k; a probability that vanished counts as the smallest number of float32."""
        logs = np.log(np.maximum(self.posteriors_, np.finfo(np.float32).tiny))
        return logs.astype(dtype)

    def _score(self, rows: Rows, prepared: FloatArray) -> FloatArray:
        p = softmax(rows.logits)
        nearest = (p @ prepared.T).argmax(axis=1)
        # For the nearest only, the sum of log-ratios: a difference of two large sums would lose digits.
        logs = np.log(np.maximum(p, np.finfo(p.dtype).tiny))
        logs -= prepared[nearest]
        return -np.einsum("nc,nc->n", p, logs)


@register
class Entropy(Detector):
    """Minus the Shannon entropy of the softmax probabilities.

    ``Σ_c p_c log p_c``. With ``s_c = l_c - max l`` and ``R = Σ_{c ≠ ŷ} exp(s_c)`` the entropy is ``log(1 + R) + Σ_{c ≠
    ŷ} exp(s_c) (-s_c) / (1 + R)``. All terms are positive, so a confident network keeps its digits.
    """

    name = "entropy"
    title = "Entropy"
    needs = LOGITS
    fits_on = "none"
    citation = (
        "Chan, Rottmann and Gottschalk, Entropy Maximization and Meta Classification for Out-of-Distribution Detection "
        "in Semantic Segmentation, ICCV 2021"
    )

    def _score(self, rows: Rows, prepared: Any) -> FloatArray:
        winner = rows.logits.argmax(axis=1)
        gaps = rows.logits - own_columns(rows.logits, winner)[:, None]
        weights = np.exp(gaps)
        weights[np.arange(len(winner)), winner] = 0
        rest = weights.sum(axis=1)
        # A logit so far below that exp is zero contributes zero, whatever the gap is.
        return np.einsum("nc,nc->n", weights, gaps) / (1 + rest) - np.log1p(rest)


Weibull: TypeAlias = tuple[Float64Array, Float64Array, Float64Array]  # start, shape and log of the scale


@register
class OpenMax(Detector):
    """Log-odds of "known" against "unknown" after OpenMax has revised the logits.

    Per class, the mean logits ``μ_c`` of its correctly classified fit samples, and a Weibull distribution ``F_c`` of
    the ``tail`` largest distances to it. With ``r`` the rank of class c among the logits, the ``a`` largest are
    revised, where ``a`` is ``alpha``, at most the number of classes: ``l'_c = l_c (1 - ω_c)``,
    ``ω_c = (a - r + 1) / a · F_c(‖l - μ_c‖)``. The logit of "unknown" is what they lose, ``l'_0 = Σ_c l_c ω_c``. The
    score is ``log Σ_c exp(l'_c) - l'_0``; it ranks as 1 - P(unknown) and does not saturate.

    A class without a correctly classified sample is represented by all its samples. A class without samples is unknown:
    its logit is revised as if ``F_c`` were 1. Revising moves logits towards 0 and so raises negative ones: add a
    constant to all logits then.

    Parameters
    ----------
    tail:
        Number of largest distances per class that the Weibull distribution is fitted to.
    alpha:
        Number of largest logits that are revised.
    """

    name = "openmax"
    title = "OpenMax"
    needs = frozenset({"logits", "labels"})
    citation = "Bendale and Boult, Towards Open Set Deep Networks, CVPR 2016"
    tail: int = number(20, 2, 1 << 20, whole=True, grid=(10, 20, 50), refit=True)
    alpha: int = number(10, 1, whole=True, grid=(3, 10))

    def _fit(self, data: FitData) -> None:
        self.centres_, counts, correct = correct_class_means(data, "logits")
        self.seen_ = (counts > 0).astype(np.float64)
        self.tails_ = np.full((data.columns, self.tail), np.nan)  # ascending distances, filled from the right
        for rows in data:
            right = (rows.logits.argmax(axis=1) == rows.classes) | (correct[rows.classes] == 0)
            classes = rows.classes[right]
            distances = norms(rows.logits[right] - self.centres_[classes])
            order = np.argsort(classes, kind="stable")
            seen, first = np.unique(classes[order], return_index=True)
            for c, own in zip(seen, np.split(distances[order], first[1:]), strict=False):
                nearness = np.sort(-np.concatenate([self.tails_[c], own]))  # NaN last
                self.tails_[c] = -nearness[: self.tail][::-1]

    def _prepare(self, dtype: np.dtype[Any]) -> Weibull:
        return weibull(self.tails_)

    def _score(self, rows: Rows, prepared: Weibull) -> FloatArray:
        logits = rows.logits.astype(np.float64)
        count = min(self.alpha, logits.shape[1])
        top = np.argpartition(-logits, count - 1, axis=1)[:, :count]
        top = np.take_along_axis(top, np.argsort(-np.take_along_axis(logits, top, axis=1), axis=1), axis=1)
        weights = (count - np.arange(count)) / count  # 1 for the largest logit, 1 / count for the last one revised
        lost = np.zeros_like(logits)
        for rank in range(count):
            c = top[:, rank]
            distance = norms(rows.logits - self.centres_[c]).astype(np.float64)
            revised = weights[rank] * self._outside(distance, c, prepared)
            each = np.arange(len(c))
            lost[each, c] = logits[each, c] * revised
        return logsumexp(logits - lost) - lost.sum(axis=1)

    def _outside(self, distance: Float64Array, c: Any, tails: Weibull) -> Float64Array:
        """``F_c(distance)`` per row; 1 for a class without samples."""
        start, shape, log_scale = (part[c] for part in tails)
        step = np.isinf(shape)
        logs = np.log(np.maximum(distance - start + SHIFT, 1e-300)) - log_scale
        exponent = np.where(step, 0.0, np.minimum(np.where(step, 1.0, shape) * logs, 50.0))
        inside = np.where(step, distance > start, -np.expm1(-np.exp(exponent)))
        return np.where(self.seen_[c] > 0, inside, 1.0)


def weibull(tails: Float64Array) -> Weibull:
    """Maximum-likelihood Weibull distribution of ``tail - min(tail) + SHIFT``: start, shape and log of the scale.

    ``tails`` are ``[..., tail]``: one distribution per row, distances in ascending order after any NaN. The shape k
    solves ``Σ x^k log x / Σ x^k - 1/k = mean(log x)``, whose left side increases with k; the scale is
    ``(mean x^k)^(1/k)``. If all distances are equal, the distribution is a step there (an infinite shape).
    """
    known = ~np.isnan(tails)
    least = np.where(known, tails, np.inf).min(axis=-1)
    start = np.where(known.any(axis=-1), tails[..., -1], 0.0)
    varies = start - least > 1e-9 * np.maximum(1.0, np.abs(start))
    start[varies] = least[varies]
    shape, log_scale = np.full(start.shape, np.inf), np.zeros(start.shape)
    known, tails = known[varies], tails[varies]
    count = known.sum(axis=1)
    logs = np.where(known, np.log1p((tails - start[varies][:, None]) / SHIFT), 0.0)
    largest, mean = logs[:, -1:], logs.sum(axis=1) / count
    low, high = 1e-3 / largest, 1e6 / largest
    while (high > low * (1 + 1e-14)).any():
        k = np.sqrt(low * high)
        powers = known * np.exp(k * (logs - largest))
        above = ((powers * logs).sum(axis=1) / powers.sum(axis=1) - mean)[:, None] > 1 / k
        low, high = np.where(above, low, k), np.where(above, k, high)
    k = np.sqrt(low * high)
    powers = known * np.exp(k * (logs - largest))
    shape[varies] = k[:, 0]
    log_scale[varies] = np.log(SHIFT) + largest[:, 0] + np.log(powers.sum(axis=1) / count) / k[:, 0]
    return start, shape, log_scale

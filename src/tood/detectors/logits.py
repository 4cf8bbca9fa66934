"""Detectors that read only logits."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from tood.arrays import FloatArray
from tood.detectors.base import Detector, Grid
from tood.detectors.outputs import FitData, Rows
from tood.detectors.registry import register
from tood.detectors.rowwise import own_columns, softmax
from tood.detectors.statistics import class_sums
from tood.energy import exponentials, logsumexp

LOGITS = frozenset({"logits"})


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
        result: FloatArray = own_columns(values, rows.logits.argmax(axis=1)) / total
        return result


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
    grid: ClassVar[Grid] = {"temperature": (1.0,)}

    def __init__(self, temperature: float = 1.0) -> None:
        self.temperature = temperature

    def _check(self) -> None:
        self._number("temperature", 1e-6, 1e6)

    def _score(self, rows: Rows, prepared: Any) -> FloatArray:
        if self.temperature == 1:
            return logsumexp(rows.logits)
        t = float(self.temperature)
        return logsumexp(rows.logits / t) * t


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
    grid: ClassVar[Grid] = {"gamma": (0.01, 0.1, 0.5, 1.0, 2.0, 5.0, 10.0), "m": (10, 50, 100, 200, 500, 1000)}

    def __init__(self, gamma: float = 0.1, m: int = 100) -> None:
        self.gamma = gamma
        self.m = m

    def _check(self) -> None:
        self._number("gamma", 1e-6, 1e3)
        self._number("m", 1, 1 << 31, whole=True)

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
        result: FloatArray = -np.exp(gamma * (log_rest - 2 * log_total))
        count = min(self.m, columns) - 1
        if count == 0:
            return result
        if count < columns - 1:
            others = np.partition(others, columns - count, axis=1)[:, columns - count :]
        others -= log_total[:, None]
        logs = np.exp(others)  # log p + log(1 - p), in place
        np.log1p(np.negative(logs, out=logs), out=logs)
        logs += others
        logs *= gamma
        np.exp(logs, out=logs)
        result -= logs.sum(axis=1)
        return result


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

    posteriors_: FloatArray  # [K, C], of the K classes that were predicted

    def _fit(self, data: FitData) -> None:
        sums, counts = np.zeros(()), np.zeros(())
        for rows in data:
            posterior, predicted = softmax(rows.logits), rows.logits.argmax(axis=1)
            sums = sums + class_sums(posterior, predicted, data.columns)
            counts = counts + np.bincount(predicted, minlength=data.columns)
        seen = counts > 0
        self.posteriors_ = sums[seen] / counts[seen, None]

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
        result: FloatArray = -np.einsum("nc,nc->n", p, logs)
        return result


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
        result: FloatArray = np.einsum("nc,nc->n", weights, gaps) / (1 + rest) - np.log1p(rest)
        return result

"""OpenMax: logits revised by how far a sample lies in the tail of each class."""

from __future__ import annotations

from typing import Any, ClassVar, NamedTuple

import numpy as np

from tood.arrays import Float64Array, FloatArray
from tood.detectors.base import Detector, Grid
from tood.detectors.distance import NEGATIVE_LOGITS
from tood.detectors.outputs import FitData, Rows
from tood.detectors.registry import register
from tood.detectors.rowwise import norms
from tood.detectors.statistics import correct_class_means
from tood.energy import logsumexp

SHIFT = 10_000.0  # added to distances before the Weibull fit, as in libMR: the fit then hardly depends on their origin


class Tails(NamedTuple):
    """Centre and Weibull distribution of each class, ready to score."""

    centres: Float64Array  # [C, C]
    start: Float64Array  # [C], the smallest distance of the tail
    shape: Float64Array  # [C], of the Weibull distribution; infinite: a step at the largest distance
    log_scale: Float64Array  # [C]


@register
class OpenMax(Detector):
    """Log-odds of "known" against "unknown" after OpenMax has revised the logits.

    Per class, the mean logits ``μ_c`` of its correctly classified fit samples, and a Weibull distribution ``F_c`` of
    the ``tail`` largest distances to it. With ``r`` the rank of class c among the logits, the ``a`` largest are
    revised, where ``a`` is ``alpha``, at most the number of classes: ``l'_c = l_c (1 - ω_c)``,
    ``ω_c = (a - r + 1) / a · F_c(‖l - μ_c‖)``. The logit of "unknown" is what they lose, ``l'_0 = Σ_c l_c ω_c``. The
    score is ``log Σ_c exp(l'_c) - l'_0``; it ranks as 1 - P(unknown) and does not saturate.

    A class without a correctly classified sample is represented by all its samples. A class without samples is unknown:
    its logit is revised as if ``F_c`` were 1. Revising moves logits towards 0 and so raises negative ones, which gets
    a warning.

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
    grid: ClassVar[Grid] = {"tail": (10, 20, 50), "alpha": (3, 10)}
    refit = frozenset({"tail"})
    passes = 2

    centres_: Float64Array  # [C, C]
    seen_: Float64Array  # [C], 1 for a class with fit samples
    tails_: Float64Array  # [C, tail], distances in ascending order, filled from the right; NaN elsewhere

    def __init__(self, tail: int = 20, alpha: int = 10) -> None:
        self.tail = tail
        self.alpha = alpha

    def _check(self) -> None:
        self._number("tail", 2, 1 << 20, whole=True)
        self._number("alpha", 1, 1 << 31, whole=True)

    def _fit(self, data: FitData) -> None:
        means = correct_class_means(data, "logits")
        self.centres_, self.seen_ = means.means, means.seen.astype(np.float64)
        if self.centres_[means.seen].max(axis=1).mean() < 0:
            self._warn(NEGATIVE_LOGITS.format("revising them raises them"))
        self.tails_ = np.full((data.columns, self.tail), np.nan)
        for rows in data:
            right = (rows.logits.argmax(axis=1) == rows.classes) | ~means.any_correct[rows.classes]
            classes = rows.classes[right]
            distances = norms(rows.logits[right] - self.centres_[classes])
            order = np.argsort(classes, kind="stable")
            seen, first = np.unique(classes[order], return_index=True)
            for c, own in zip(seen, np.split(distances[order], first[1:]), strict=False):
                nearness = np.sort(-np.concatenate([self.tails_[c], own]))  # NaN last
                self.tails_[c] = -nearness[: self.tail][::-1]

    def _prepare(self, dtype: np.dtype[Any]) -> Tails:
        return Tails(self.centres_, *weibull(self.tails_))

    def _score(self, rows: Rows, prepared: Tails) -> FloatArray:
        logits = rows.logits.astype(np.float64)
        count = min(self.alpha, logits.shape[1])
        top = np.argpartition(-logits, count - 1, axis=1)[:, :count]
        top = np.take_along_axis(top, np.argsort(-np.take_along_axis(logits, top, axis=1), axis=1), axis=1)
        weights = (count - np.arange(count)) / count  # 1 for the largest logit, 1 / count for the last one revised
        lost = np.zeros_like(logits)
        for rank in range(count):
            c = top[:, rank]
            distance = norms(rows.logits - prepared.centres[c]).astype(np.float64)
            revised = weights[rank] * self._outside(distance, c, prepared)
            each = np.arange(len(c))
            lost[each, c] = logits[each, c] * revised
        result: FloatArray = logsumexp(logits - lost) - lost.sum(axis=1)
        return result

    def _outside(self, distance: Float64Array, c: Any, tails: Tails) -> Float64Array:
        """``F_c(distance)`` per row; 1 for a class without samples."""
        shape, start = tails.shape[c], tails.start[c]
        step = np.isinf(shape)
        logs = np.log(np.maximum(distance - start + SHIFT, 1e-300)) - tails.log_scale[c]
        exponent = np.where(step, 0.0, np.minimum(np.where(step, 1.0, shape) * logs, 50.0))
        inside = np.where(step, distance > start, -np.expm1(-np.exp(exponent)))
        result: Float64Array = np.where(self.seen_[c] > 0, inside, 1.0)
        return result


def weibull(tails: Float64Array) -> tuple[Float64Array, Float64Array, Float64Array]:
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

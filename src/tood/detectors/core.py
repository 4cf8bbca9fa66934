"""CORE: confidence of the head plus the direction of what it discards."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from tood.arrays import Float64Array, FloatArray, IntArray
from tood.detectors.base import Detector
from tood.detectors.outputs import FitData, Rows
from tood.detectors.registry import register
from tood.detectors.rowwise import norms, ratio, unit
from tood.detectors.statistics import class_sums
from tood.energy import logsumexp

ROUNDING = 1e-5  # a shorter residual, as a share of the feature's length, is rounding: weights are float32


class Directions(NamedTuple):
    """What scoring reads; rows have unit length, or are zero."""

    weight: FloatArray  # [C, D]
    residuals: FloatArray  # [C, D], mean residual of each class


@register
class CORE(Detector):
    """Energy plus the cosine between the residual and the mean residual of the predicted class.

    The residual ``r`` is the part of a feature that is orthogonal to the weight of a class: that class's logit does not
    depend on it. ``score = (E - mean E) / std E + (cos(r, m_ŷ) - mean cos) / std cos``. ``r`` is orthogonal to the
    weight of the predicted class ŷ, ``m_c`` is the mean residual of the fit samples of class c, and means and standard
    deviations are over the fit samples.

    A class without fit samples has the mean of all residuals; a residual of length zero has cosine 0.
    """

    name = "core"
    title = "CORE"
    needs = frozenset({"logits", "features", "labels", "head"})
    citation = (
        "Yang, Kim and Bahk, CORE: Robust Out-of-Distribution Detection via Confidence and Orthogonal Residual "
        "Scoring, 2026 (arXiv 2603.18290)"
    )
    version = 2
    passes = 2

    residuals_: Float64Array  # [C, D], mean residual of each class
    centres_: Float64Array  # [2], mean energy and mean cosine
    spreads_: Float64Array  # [2], their standard deviations

    def _fit(self, data: FitData) -> None:
        weight = unit(self.weight_.astype(np.float64))
        sums, counts = np.zeros(()), np.zeros(())
        for rows in data:
            sums = sums + class_sums(residual(rows.features, rows.classes, weight), rows.classes, data.columns)
            counts = counts + np.bincount(rows.classes, minlength=data.columns)
        common = sums.sum(axis=0) / counts.sum()
        self.residuals_ = np.where(counts[:, None] > 0, sums / np.maximum(counts, 1)[:, None], common)
        directions = self._prepare(np.dtype(np.float64))
        moments = np.zeros((2, 2))
        for rows in data:
            values = np.stack([logsumexp(rows.logits.astype(np.float64)), cosines(rows, directions)])
            moments += np.stack([values.sum(axis=1), (values**2).sum(axis=1)])
        self.centres_, squares = moments / counts.sum()
        variance = squares - self.centres_**2
        constant = variance <= 1e-14 * np.maximum(squares, 1e-12)  # float32 rounding of equal energies is below
        self.spreads_ = np.where(constant, 1.0, np.sqrt(np.where(constant, 1.0, variance)))

    def _prepare(self, dtype: np.dtype[Any]) -> Directions:
        weight, residuals = self.weight_.astype(np.float64), self.residuals_.astype(np.float64)
        lengths = norms(residuals)
        kept = np.where((lengths > ROUNDING * lengths.max())[:, None], residuals, 0.0)
        return Directions(unit(weight).astype(dtype), unit(kept).astype(dtype))

    def _score(self, rows: Rows, prepared: Directions) -> FloatArray:
        (energy, cosine), (energy_std, cosine_std) = self.centres_, self.spreads_
        confidence = (logsumexp(rows.logits) - energy) / energy_std
        result: FloatArray = confidence + (cosines(rows, prepared) - cosine) / cosine_std
        return result


def residual(features: FloatArray, classes: IntArray, weight: FloatArray) -> FloatArray:
    """``[n, D]``: features without their part along the weight (of unit length) of one class per row."""
    own = weight[classes]
    result: FloatArray = features - np.einsum("nd,nd->n", features, own)[:, None] * own
    return result


def cosines(rows: Rows, directions: Directions) -> FloatArray:
    """``[n]``: cosine between the residual and the mean residual of the predicted class; 0 if either vanishes."""
    predicted = rows.logits.argmax(axis=1)
    residuals = residual(rows.features, predicted, directions.weight)
    lengths = norms(residuals)
    lengths[lengths <= ROUNDING * norms(rows.features)] = 0
    return ratio(np.einsum("nd,nd->n", residuals, directions.residuals[predicted]), lengths, otherwise=0)

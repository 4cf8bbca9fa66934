"""CORE: confidence of the head plus the direction of what the head discards."""

from __future__ import annotations

from typing import Any, ClassVar, NamedTuple

import numpy as np

from tood.arrays import Float64Array, FloatArray
from tood.detectors.base import Detector, Grid
from tood.detectors.outputs import FitData, Rows
from tood.detectors.registry import register
from tood.detectors.rowwise import norms, ratio
from tood.detectors.statistics import class_sums
from tood.energy import logsumexp

RANK = 1e-5  # singular values below this share of the largest count as zero: weights are float32


class Signals(NamedTuple):
    """What scoring reads."""

    basis: FloatArray | None  # [D, r], of the span of the head's weights; none: each class's own weight
    weight: FloatArray  # [C, D], rows of unit length
    directions: FloatArray  # [C, D], mean residual of each class, of unit length


@register
class CORE(Detector):
    """Energy plus the cosine between the residual and the mean residual of the predicted class.

    The residual ``r`` is the part of a feature that is orthogonal to the head's weights: the logits do not depend on
    it. ``score = (E - mean E) / std E + (cos(r, m_ŷ) - mean cos) / std cos``, with ``m_c`` the mean residual of the fit
    samples of class c, and means and deviations over the fit samples.

    ``r`` is orthogonal to all weights. If their span is the whole space (usual for C ≥ D), nothing is left, and ``r``
    is orthogonal to the weight of the predicted class instead. A class without fit samples has the mean of all
    residuals; a zero residual has cosine 0.

    Parameters
    ----------
    subspace:
        ``"head"`` as above; ``"class"``: the residual is always orthogonal to the predicted class's weight only.
    """

    name = "core"
    title = "CORE"
    needs = frozenset({"logits", "features", "labels", "head"})
    citation = (
        "Yang, Kim and Bahk, CORE: Robust Out-of-Distribution Detection via Confidence and Orthogonal Residual "
        "Scoring, 2026 (arXiv 2603.18290)"
    )
    grid: ClassVar[Grid] = {"subspace": ("head", "class")}
    refit = frozenset({"subspace"})
    passes = 2

    residuals_: Float64Array  # [C, D], mean residual of each class
    centres_: Float64Array  # [2], mean energy and mean cosine
    spreads_: Float64Array  # [2], their standard deviations

    def __init__(self, subspace: str = "head") -> None:
        self.subspace = subspace

    def _check(self) -> None:
        self._one_of("subspace", self.grid["subspace"])

    def _fit(self, data: FitData) -> None:
        signals = self._signals(np.dtype(np.float64), np.zeros_like(self.weight_))
        sums, counts = np.zeros(()), np.zeros(())
        for rows in data:
            # By label, against the weight of that class: what the sample would show if it were classified correctly.
            sums = sums + class_sums(residual(rows.features, rows.classes, signals), rows.classes, data.columns)
            counts = counts + np.bincount(rows.classes, minlength=data.columns)
        common = sums.sum(axis=0) / counts.sum()
        self.residuals_ = np.where(counts[:, None] > 0, sums / np.maximum(counts, 1)[:, None], common)
        signals = self._signals(np.dtype(np.float64), self.residuals_)
        total, moments = 0, np.zeros((2, 2))
        for rows in data:
            values = np.stack([logsumexp(rows.logits.astype(np.float64)), cosines(rows, signals)])
            total += values.shape[1]
            moments += np.stack([values.sum(axis=1), (values**2).sum(axis=1)])
        self.centres_ = moments[0] / total
        variance = moments[1] / total - self.centres_**2
        constant = variance <= 1e-12 * np.maximum(moments[1] / total, 1e-12)
        self.spreads_ = np.where(constant, 1.0, np.sqrt(np.where(constant, 1.0, variance)))

    def _signals(self, dtype: np.dtype[Any], residuals: Float64Array) -> Signals:
        weight = self.weight_.astype(np.float64)
        basis: Float64Array | None = None
        if self.subspace == "head":
            values, rows = np.linalg.svd(weight, full_matrices=False)[1:]
            basis = rows[values > RANK * values[0]].T if values[0] > 0 else rows[:0].T
            if basis.shape[1] == basis.shape[0]:
                basis = None
        unit = weight / np.maximum(norms(weight), np.finfo(np.float64).tiny)[:, None]
        lengths = norms(residuals.astype(np.float64))
        # What rounding leaves of a residual has no direction.
        directions = np.where((lengths > RANK * (lengths.max() or 1.0))[:, None], residuals, 0.0)
        directions = directions / np.where(lengths > 0, lengths, 1)[:, None]
        return Signals(None if basis is None else basis.astype(dtype), unit.astype(dtype), directions.astype(dtype))

    def _prepare(self, dtype: np.dtype[Any]) -> Signals:
        return self._signals(dtype, self.residuals_)

    def _score(self, rows: Rows, prepared: Signals) -> FloatArray:
        (energy, cosine), (energy_std, cosine_std) = self.centres_, self.spreads_
        confidence = (logsumexp(rows.logits) - energy) / energy_std
        result: FloatArray = confidence + (cosines(rows, prepared) - cosine) / cosine_std
        return result


def residual(features: FloatArray, classes: Any, signals: Signals) -> FloatArray:
    """``[n, D]``: features without their part along the head's weights, or along the weight of one class per row."""
    if signals.basis is not None:
        aligned = (features @ signals.basis) @ signals.basis.T
    else:
        weight = signals.weight[classes]
        aligned = np.einsum("nd,nd->n", features, weight)[:, None] * weight
    result: FloatArray = features - aligned
    return result


def cosines(rows: Rows, signals: Signals) -> FloatArray:
    """``[n]``: cosine between the residual and the mean residual of the predicted class; 0 if either vanishes."""
    predicted = rows.logits.argmax(axis=1)
    residuals = residual(rows.features, predicted, signals)
    product = np.einsum("nd,nd->n", residuals, signals.directions[predicted])
    lengths = norms(residuals)
    lengths[lengths <= RANK * norms(rows.features)] = 0
    return ratio(product, lengths, otherwise=0)

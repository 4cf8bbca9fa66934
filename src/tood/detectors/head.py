"""Detectors that compare a feature with the head or with the mean feature of the class it was assigned to."""

from __future__ import annotations

from typing import Any

import numpy as np

from tood.arrays import FloatArray, IntArray
from tood.detectors.base import Detector, FitData, Rows, choice, number, register
from tood.detectors.statistics import (
    class_means,
    correct_class_means,
    mean_of,
    norms,
    own_columns,
    ratio,
    softmax,
    unit,
)
from tood.energy import logsumexp

LOGITS_FEATURES_HEAD = frozenset({"logits", "features", "head"})
ROUNDING = 1e-5  # CORE: a shorter residual, as a share of the feature's length, is rounding: weights are float32
SMALLEST = 1e-3  # Gram: least divisor, as a share of the class's largest bound


class _FromMean(Detector):
    """Base of detectors that measure features from the mean of the fit features."""

    needs = frozenset({"features", "head"})  # and the logits, which score always checks; fit does not read them

    def _fit(self, data: FitData) -> None:
        self.mean_ = mean_of(data)  # [D]


@register
class FDBD(_FromMean):
    """Summed distances to all decision boundaries, relative to the distance from the mean feature.

    ``Σ_c |l_c - l_ŷ| / ‖w_c - w_ŷ‖ ÷ ‖z - μ‖``. Classes with equal weights have no boundary and are left out. If the
    divisor is zero the score is 0, the lowest. (OpenOOD gives an all-zero feature infinity, "most in-distribution".)

    Parameters
    ----------
    normalizer:
        ``"distance"`` divides by ‖z - μ‖, ``"norm"`` by ‖z‖.
    """

    name = "fdbd"
    title = "fDBD"
    citation = "Liu and Qin, Fast Decision Boundary based Out-of-Distribution Detector, ICML 2024"
    normalizer: str = choice("distance", "norm")

    def _prepare(self, dtype: np.dtype[Any]) -> tuple[FloatArray, FloatArray]:
        """``[C, C]``: 1 / ‖w_c - w_d‖, 0 if they are equal; and the point that features are measured from."""
        weight = self.weight_.astype(np.float64)
        gram = weight @ weight.T
        sizes = np.add.outer(gram.diagonal(), gram.diagonal())
        squared = sizes - 2 * gram
        apart = squared > 1e-13 * sizes  # equal weights differ by less, through rounding
        inverse = np.where(apart, 1 / np.sqrt(np.where(apart, squared, 1)), 0)
        origin = self.mean_ if self.normalizer == "distance" else np.zeros_like(self.mean_)
        return inverse.astype(dtype), origin.astype(dtype)

    def _score(self, rows: Rows, prepared: tuple[FloatArray, FloatArray]) -> FloatArray:
        inverse, origin = prepared
        winner = rows.logits.argmax(axis=1)
        lead = own_columns(rows.logits, winner)[:, None] - rows.logits
        return ratio(np.einsum("nc,nc->n", lead, inverse[winner]), norms(rows.features - origin), otherwise=0)


@register
class NCI(_FromMean):
    """Projection of a feature's direction on the weight of its predicted class, plus a share of its L1 norm.

    ``w_ŷ·(z - μ) / ‖z - μ‖ + α ‖z‖₁``; the first term is 0 for a feature that equals the mean.

    Parameters
    ----------
    alpha:
        α ≥ 0.
    """

    name = "nci"
    title = "NCI"
    citation = "Liu and Qin, Detecting Out-of-Distribution Through the Lens of Neural Collapse, CVPR 2025"
    alpha: float = number(1e-4, 0, 1e6, grid=(1e-4, 1e-3, 1e-2, 1e-1))

    def _prepare(self, dtype: np.dtype[Any]) -> tuple[FloatArray, FloatArray]:
        return self.weight_.astype(dtype), self.mean_.astype(dtype)

    def _score(self, rows: Rows, prepared: tuple[FloatArray, FloatArray]) -> FloatArray:
        weight, mean = prepared
        centred = rows.features - mean
        along = np.einsum("nd,nd->n", centred, weight[rows.logits.argmax(axis=1)])
        return ratio(along, norms(centred), otherwise=0) + float(self.alpha) * l1(rows.features)


@register
class SHE(Detector):
    """Similarity to the mean feature of the correctly classified fit samples of the predicted class.

    A class without a correctly classified sample is represented by the mean of all its samples, one without samples by
    the mean of all features: after forgetting, and before a class is learned, both are normal.

    Parameters
    ----------
    metric:
        ``"inner_product"``, ``"euclidean"`` (minus the distance) or ``"cosine"``.
    """

    name = "she"
    title = "SHE"
    needs = frozenset({"logits", "features", "labels"})
    citation = (
        "Zhang et al., Out-of-Distribution Detection based on In-Distribution Data Patterns Memorization with Modern "
        "Hopfield Energy, ICLR 2023"
    )
    metric: str = choice("inner_product", "euclidean", "cosine")

    def _fit(self, data: FitData) -> None:
        self.patterns_ = correct_class_means(data, "features")[0]  # [C, D]

    def _prepare(self, dtype: np.dtype[Any]) -> FloatArray:
        return self.patterns_.astype(dtype)

    def _score(self, rows: Rows, prepared: FloatArray) -> FloatArray:
        pattern = prepared[rows.logits.argmax(axis=1)]
        if self.metric == "euclidean":
            return -norms(rows.features - pattern)
        product: FloatArray = np.einsum("nd,nd->n", rows.features, pattern)
        if self.metric == "cosine":
            return ratio(product, norms(rows.features) * norms(pattern), otherwise=0)
        return product


@register
class GradNorm(Detector):
    """L1 norm of the gradient of the cross-entropy to uniform labels, with respect to the head's weights.

    With the loss summed over classes, as in the authors' code, it has a closed form that needs no backward pass:
    ``‖z‖₁ · Σ_c |C·p_c - 1|``.
    """

    name = "gradnorm"
    title = "GradNorm"
    needs = frozenset({"logits", "features"})
    fits_on = "none"
    citation = (
        "Huang et al., On the Importance of Gradients for Detecting Distributional Shifts in the Wild, NeurIPS 2021"
    )

    def _score(self, rows: Rows, prepared: Any) -> FloatArray:
        p = softmax(rows.logits)
        p *= p.shape[1]
        p -= 1
        return l1(rows.features) * l1(p)


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

    def _fit(self, data: FitData) -> None:
        weight = unit(self.weight_.astype(np.float64))
        self.residuals_, _ = class_means(
            data, lambda rows: (residual(rows.features, rows.classes, weight), rows.classes)
        )
        directions = self._prepare(np.dtype(np.float64))
        parts = [(logsumexp(rows.logits.astype(np.float64)), cosines(rows, directions)) for rows in data]
        values = np.concatenate(parts, axis=1)  # [2, n], energy and cosine
        self.centres_, spreads = values.mean(axis=1), values.std(axis=1)
        constant = spreads <= 1e-7 * np.maximum(np.abs(self.centres_), 1e-6)  # rounding of equal energies is below
        self.spreads_ = np.where(constant, 1.0, spreads)

    def _prepare(self, dtype: np.dtype[Any]) -> tuple[FloatArray, FloatArray]:
        """``[C, D]`` each: directions of the weights and of the mean residuals; zero if there is none."""
        weight, residuals = self.weight_.astype(np.float64), self.residuals_.astype(np.float64)
        lengths = norms(residuals)
        kept = np.where((lengths > ROUNDING * lengths.max())[:, None], residuals, 0.0)
        return unit(weight).astype(dtype), unit(kept).astype(dtype)

    def _score(self, rows: Rows, prepared: tuple[FloatArray, FloatArray]) -> FloatArray:
        (energy, cosine), (energy_std, cosine_std) = self.centres_, self.spreads_
        confidence = (logsumexp(rows.logits) - energy) / energy_std
        return confidence + (cosines(rows, prepared) - cosine) / cosine_std


def residual(features: FloatArray, classes: IntArray, weight: FloatArray) -> FloatArray:
    """``[n, D]``: features without their part along the weight (of unit length) of one class per row."""
    own = weight[classes]
    return features - np.einsum("nd,nd->n", features, own)[:, None] * own


def cosines(rows: Rows, directions: tuple[FloatArray, FloatArray]) -> FloatArray:
    """``[n]``: cosine between the residual and the mean residual of the predicted class; 0 if either vanishes."""
    predicted, (weight, mean_residuals) = rows.logits.argmax(axis=1), directions
    residuals = residual(rows.features, predicted, weight)
    lengths = norms(residuals)
    lengths[lengths <= ROUNDING * norms(rows.features)] = 0
    return ratio(np.einsum("nd,nd->n", residuals, mean_residuals[predicted]), lengths, otherwise=0)


@register
class CADRef(Detector):
    """Minus the relative L1 distance to the mean feature of the predicted class, its parts weighted by energies.

    With ``d = z - μ_ŷ`` and ``s = sign(w_ŷ)``: ``-[‖(d s)₊‖₁ / E + ‖(-d s)₊‖₁ / Ē] / ‖z‖₁``, where E is the sample's
    energy and Ē its mean over the fit samples. The first part raises the predicted logit, the second lowers it.
    ``μ_c`` is the mean over fit samples that are predicted as c, that of all if there are none. The formula needs
    energies above zero. If fit samples have lower ones, energies are counted from the lowest, and none counts as less
    than a hundredth of the mean; likewise ‖z‖₁ and that of the class mean.
    """

    name = "cadref"
    title = "CADRef"
    needs = LOGITS_FEATURES_HEAD
    citation = (
        "Ling et al., CADRef: Robust Out-of-Distribution Detection via Class-Aware Decoupled Relative Feature "
        "Leveraging, CVPR 2025"
    )

    def _fit(self, data: FitData) -> None:
        self.means_ = class_means(data, lambda rows: (rows.features, rows.logits.argmax(axis=1)))[0]  # [C, D]
        energies = np.concatenate([logsumexp(rows.logits) for rows in data]).astype(np.float64)
        self.lowest_ = min(0.0, float(energies.min()))
        self.energy_ = float(energies.mean() - self.lowest_) or 1.0

    def _prepare(self, dtype: np.dtype[Any]) -> tuple[FloatArray, FloatArray]:
        return self.means_.astype(dtype), np.sign(self.weight_).astype(dtype)

    def _score(self, rows: Rows, prepared: tuple[FloatArray, FloatArray]) -> FloatArray:
        predicted = rows.logits.argmax(axis=1)
        mean, sign = (part[predicted] for part in prepared)
        along = (rows.features - mean) * sign
        energy = np.maximum(logsumexp(rows.logits) - self.lowest_, self.energy_ / 100)
        distance = l1(np.maximum(along, 0)) / energy + l1(np.maximum(-along, 0)) / self.energy_
        return -ratio(distance, np.maximum(l1(rows.features), l1(mean) / 100), otherwise=0)


@register
class Gram(Detector):
    """Minus the deviation of the feature's Gram matrices from the range seen in the predicted class.

    The method's Gram matrices of order p are ``(F^p F^pᵀ)^(1/p)`` of a layer's feature maps F, summed along rows.
    Outputs hold one layer, the pooled penultimate features, so F is the vector z and the sums are
    ``g_{p,i} = (z_i^p Σ_j z_j^p)^(1/p)`` with the sign kept. Per predicted class, the smallest and the largest
    ``g_{p,i}`` of the fit samples are kept. A sample's deviation is the sum over p and i of how far it lies outside,
    relative to the bound that it violates. Classes that were never predicted have the bounds of all fit samples.

    With several layers the method is stronger. Here it costs no second pass through the network.

    Parameters
    ----------
    orders:
        Gram matrices of order 1 to this.
    """

    name = "gram"
    title = "Gram"
    needs = frozenset({"logits", "features"})
    citation = "Sastry and Oore, Detecting Out-of-Distribution Examples with Gram Matrices, ICML 2020"
    orders: int = number(10, 1, 64, whole=True, refit=True)

    def _fit(self, data: FitData) -> None:
        lowest = highest = np.empty(0)
        for rows in data:
            if not lowest.size:
                lowest = np.full((self.orders, data.columns, data.dimensions), np.inf, dtype=rows.features.dtype)
                highest = -lowest
            predicted = rows.logits.argmax(axis=1)
            order = np.argsort(predicted, kind="stable")
            seen, first = np.unique(predicted[order], return_index=True)
            for p, sums in enumerate(gram_sums(rows.features[order], self.orders)):
                lowest[p, seen] = np.minimum(lowest[p, seen], np.minimum.reduceat(sums, first))
                highest[p, seen] = np.maximum(highest[p, seen], np.maximum.reduceat(sums, first))
        known = np.isfinite(lowest[0, :, 0])[None, :, None]
        self.lowest_ = np.where(known, lowest, lowest.min(axis=1, keepdims=True))
        self.highest_ = np.where(known, highest, highest.max(axis=1, keepdims=True))

    def _prepare(self, dtype: np.dtype[Any]) -> list[FloatArray]:
        """``[P, C, D]`` each: the bounds, and the divisors of deviations below and above them."""
        parts = [np.abs(self.lowest_), np.abs(self.highest_)]
        largest = np.maximum(*parts).max(axis=2, keepdims=True)
        floor = np.where(largest > 0, SMALLEST * largest, 1)
        below, above = (np.maximum(part, floor) for part in parts)
        return [part.astype(dtype) for part in (self.lowest_, self.highest_, below, above)]

    def _score(self, rows: Rows, prepared: list[FloatArray]) -> FloatArray:
        predicted = rows.logits.argmax(axis=1)
        result = np.zeros(len(predicted), dtype=rows.features.dtype)
        for p, sums in enumerate(gram_sums(rows.features, self.orders)):
            lowest, highest, below, above = (part[p][predicted] for part in prepared)
            result -= (np.maximum(lowest - sums, 0) / below).sum(axis=1)
            result -= (np.maximum(sums - highest, 0) / above).sum(axis=1)
        return result


def gram_sums(features: FloatArray, orders: int) -> list[FloatArray]:
    """Row sums ``[n, D]`` of the Gram matrices of order 1 to ``orders``.

    ``|z_i^p Σ_j z_j^p|^(1/p) = |z_i| · |Σ_j z_j^p|^(1/p)``; divided by the largest entry first, no power overflows.
    """
    largest = np.abs(features).max(axis=1, keepdims=True)
    scaled = features / np.where(largest > 0, largest, 1)
    power, sums = np.ones_like(scaled), []
    for p in range(1, orders + 1):
        power = power * scaled
        total = power.sum(axis=1, keepdims=True)
        root = np.abs(total) ** (1 / p) * np.sign(total) * largest
        sums.append((np.abs(features) if p % 2 == 0 else features) * root)
    return sums


def l1(x: FloatArray) -> FloatArray:
    """``[n]``: the sum of absolute values of each row."""
    return np.abs(x) @ np.ones(x.shape[1], dtype=x.dtype)

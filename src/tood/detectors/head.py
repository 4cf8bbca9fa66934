"""Detectors that compare a feature with the head or with the mean feature of the class it was assigned to."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from tood.arrays import Float64Array, FloatArray
from tood.detectors.base import Detector, Grid
from tood.detectors.outputs import FitData, Rows
from tood.detectors.registry import register
from tood.detectors.rowwise import norms, own_columns, ratio, softmax
from tood.detectors.statistics import correct_class_means, mean_feature

LOGITS_FEATURES_HEAD = frozenset({"logits", "features", "head"})


@register
class FDBD(Detector):
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
    needs = LOGITS_FEATURES_HEAD
    fit_needs = frozenset({"features", "head"})
    citation = "Liu and Qin, Fast Decision Boundary based Out-of-Distribution Detector, ICML 2024"
    grid: ClassVar[Grid] = {"normalizer": ("distance", "norm")}

    mean_: Float64Array  # [D]

    def __init__(self, normalizer: str = "distance") -> None:
        self.normalizer = normalizer

    def _check(self) -> None:
        self._one_of("normalizer", ("distance", "norm"))

    def _fit(self, data: FitData) -> None:
        self.mean_ = mean_feature(data)

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
class NCI(Detector):
    """Projection of a feature's direction on the weight of its predicted class, plus a share of its L1 norm.

    ``w_ŷ·(z - μ) / ‖z - μ‖ + α ‖z‖₁``; the first term is 0 for a feature that equals the mean.

    Parameters
    ----------
    alpha:
        α ≥ 0.
    """

    name = "nci"
    title = "NCI"
    needs = LOGITS_FEATURES_HEAD
    fit_needs = frozenset({"features", "head"})
    citation = "Liu and Qin, Detecting Out-of-Distribution Through the Lens of Neural Collapse, CVPR 2025"
    grid: ClassVar[Grid] = {"alpha": (1e-4, 1e-3, 1e-2, 1e-1)}

    mean_: Float64Array  # [D]

    def __init__(self, alpha: float = 1e-4) -> None:
        self.alpha = alpha

    def _check(self) -> None:
        self._number("alpha", 0, 1e6)

    def _fit(self, data: FitData) -> None:
        self.mean_ = mean_feature(data)

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
    grid: ClassVar[Grid] = {"metric": ("inner_product", "euclidean", "cosine")}

    patterns_: Float64Array  # [C, D]

    def __init__(self, metric: str = "inner_product") -> None:
        self.metric = metric

    def _check(self) -> None:
        self._one_of("metric", self.grid["metric"])

    def _fit(self, data: FitData) -> None:
        self.patterns_ = correct_class_means(data, "features").means

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


def l1(x: FloatArray) -> FloatArray:
    """``[n]``: the sum of absolute values of each row."""
    result: FloatArray = np.abs(x) @ np.ones(x.shape[1], dtype=x.dtype)
    return result

"""Distance-based detectors: Mahalanobis distances and ViM.

Distances to class means are float64: one product of the centred features with a whitening matrix, one with the means.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from tood.arrays import Float64Array, FloatArray
from tood.detectors.base import Detector, FitData, Rows, number, register
from tood.detectors.statistics import Moments, norms
from tood.energy import logsumexp

FEATURES_AND_LABELS = frozenset({"features", "labels"})
ROUNDING = 1e-5  # a shorter residual, as a share of the features' size, is rounding in float32


class Means(NamedTuple):
    """Points to measure from, ready for ``‖y - m‖² = ‖y‖² - 2 y·m + ‖m‖²``."""

    centre: Float64Array  # [D], subtracted first: it cancels, and saves digits
    whitening: Float64Array | None  # [D, r]; none is the identity
    doubled: Float64Array  # [r, K], 2 m
    squares: Float64Array  # [K], ‖m‖²

    @classmethod
    def of(cls, means: Float64Array, whitening: Float64Array | None = None) -> Means:
        """From means ``[K, D]`` and the whitening matrix; None for Euclidean distances."""
        centre = means.mean(axis=0)
        points = means - centre if whitening is None else (means - centre) @ whitening
        return cls(centre, whitening, np.ascontiguousarray(2 * points.T), np.einsum("kd,kd->k", points, points))

    def squared(self, features: FloatArray) -> tuple[Float64Array, Float64Array]:
        """The two terms of squared distances: ``‖y‖²``, ``[n]``, and ``‖m‖² - 2 y·m``, ``[n, K]``."""
        y = features - self.centre
        if self.whitening is not None:
            y = y @ self.whitening
        other = y @ self.doubled
        np.subtract(self.squares, other, out=other)
        return np.einsum("nd,nd->n", y, y), other


def whiten(covariance: Float64Array, scale: float = 0.0) -> Float64Array:
    """``A`` such that ``A Aᵀ`` is the pseudo-inverse of a covariance.

    Eigenvalues below D·eps times the largest count as zero, as in SciPy; also those below D·eps times ``scale``, the
    size of the numbers whose difference the covariance is.
    """
    values, vectors = np.linalg.eigh(covariance)
    kept = values > max(values.max(initial=0), scale) * len(values) * np.finfo(np.float64).eps
    return vectors[:, kept] / np.sqrt(values[kept])


def _size(moments: Moments) -> float:
    """The size of the numbers that covariances are differences of; above zero unless every feature is zero."""
    mean = moments.mean
    rounding = float(np.finfo(np.float64).eps * (mean @ mean))
    return max(float(np.trace(moments.second_moment(mean))), rounding)


@register
class MDS(Detector):
    """Minus the squared Mahalanobis distance to the nearest class mean, one covariance for all classes.

    The covariance is that of the features about their class means, divided by their number, inverted as a
    pseudo-inverse. Classes without a fit sample are ignored.
    """

    name = "mds"
    title = "MDS"
    needs = FEATURES_AND_LABELS
    citation = (
        "Lee et al., A Simple Unified Framework for Detecting Out-of-Distribution Samples and Adversarial Attacks, "
        "NeurIPS 2018"
    )

    def _fit(self, data: FitData) -> None:
        self._learn(Moments.of(data))

    def _learn(self, moments: Moments) -> None:
        self.means_ = moments.class_means[moments.seen]  # [K, D]
        self.whitening_ = whiten(moments.within_covariance(), _size(moments))  # [D, r]
        if self.whitening_.shape[1] == 0:
            self._warn("no class has two samples that differ, so there is no covariance; every score is 0")

    def _prepare(self, dtype: np.dtype[Any]) -> Means:
        return Means.of(self.means_, self.whitening_)

    def _score(self, rows: Rows, prepared: Means) -> FloatArray:
        own, other = prepared.squared(rows.features)
        return np.minimum(-own - other.min(axis=1), 0.0)


@register
class RMDS(MDS):
    """Mahalanobis distance to the mean of everything minus that to the nearest class mean.

    Both squared; the first uses the covariance about the common mean, the second that about the class means. With fewer
    fit samples than dimensions and classes, directions in which samples do not differ within classes are ignored in
    both.
    """

    name = "rmds"
    title = "RMDS"
    citation = (
        "Ren et al., A Simple Fix to Mahalanobis Distance for Improving Near-OOD Detection, 2021 (arXiv 2106.09022)"
    )

    def _learn(self, moments: Moments) -> None:
        super()._learn(moments)
        self.mean_ = moments.mean
        second = moments.second_moment(about=self.mean_)
        basis = np.eye(len(second)) if self.whitening_.shape[1] == len(second) else np.linalg.qr(self.whitening_)[0]
        self.background_ = basis @ whiten(basis.T @ second @ basis, _size(moments))  # whitens about the common mean

    def _score(self, rows: Rows, prepared: Means) -> FloatArray:
        y = (rows.features - self.mean_) @ self.background_
        return np.einsum("nd,nd->n", y, y) + super()._score(rows, prepared)


@register
class ViM(Detector):
    """Energy minus the scaled distance to the principal subspace of the fit features (the virtual logit).

    Features are centred at ``u = -W⁺b``; the residual lies along all but the ``dim`` leading eigenvectors of their
    second moment; its norm is scaled so that on average it equals the largest logit. Logits that are negative turn the
    sign of the residual's term, as in the paper's formula; add a constant to all logits then.

    Parameters
    ----------
    dim:
        Size of the principal subspace. If it is not below the number of dimensions D, no residual is left: D // 2 is
        used instead, with a warning.
    """

    name = "vim"
    title = "ViM"
    needs = frozenset({"logits", "features", "head"})
    citation = "Wang et al., ViM: Out-Of-Distribution with Virtual-logit Matching, CVPR 2022"
    dim: int = number(256, 0, whole=True, grid=(256, 1000), refit=True)

    def _fit(self, data: FitData) -> None:
        weight, bias = self.weight_.astype(np.float64), self.bias_.astype(np.float64)
        # Weights have float32 precision: smaller singular values count as zero, or u could have any size.
        self.origin_ = -np.linalg.pinv(weight, rcond=max(weight.shape) * np.finfo(np.float32).eps) @ bias
        moment, total = np.zeros((weight.shape[1], weight.shape[1])), 0
        for rows in data:
            centred = rows.features - self.origin_
            moment += centred.T @ centred
            total += len(centred)
        moment /= total
        dim, dimensions = self.dim, len(moment)
        if dim >= dimensions:
            dim = dimensions // 2
            self._warn(f"dim {self.dim} leaves no residual in {dimensions} dimensions; {dim} is used")
        vectors = np.linalg.eigh(moment)[1]  # eigenvalues ascend
        self.residual_ = np.ascontiguousarray(vectors[:, : dimensions - dim])
        logit, norm, prepared = 0.0, 0.0, self._prepare(data.dtype)
        for rows in data:
            logit += float(rows.logits.max(axis=1).sum(dtype=np.float64))
            norm += float(residual_norms(rows.features, *prepared).sum(dtype=np.float64))
        self.alpha_ = logit / norm if norm > ROUNDING * total * np.sqrt(np.trace(moment)) else 0.0
        if self.alpha_ == 0:
            self._warn(f"the fit samples lie within {dim} dimensions, so there is no residual; this is plain energy")
        del self.weight_, self.bias_  # not needed for scoring

    def _prepare(self, dtype: np.dtype[Any]) -> tuple[FloatArray, FloatArray]:
        return self.origin_.astype(dtype), self.residual_.astype(dtype)

    def _score(self, rows: Rows, prepared: tuple[FloatArray, FloatArray]) -> FloatArray:
        return logsumexp(rows.logits) - self.alpha_ * residual_norms(rows.features, *prepared)


def residual_norms(features: FloatArray, origin: FloatArray, residual: FloatArray) -> FloatArray:
    """``[n]``: length of the part of ``features - origin`` along the columns of ``residual``."""
    return norms((features - origin) @ residual)

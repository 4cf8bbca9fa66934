"""Gaussians whose covariances are shrunk towards the identity, so that few samples are enough."""

from __future__ import annotations

from typing import Any

import numpy as np

from tood.arrays import Float64Array, FloatArray
from tood.calibration.statistics import oas_shrinkage
from tood.detectors.base import Detector, FitData, Rows, choice, register, setting
from tood.detectors.distance import FEATURES_AND_LABELS, Means, whiten
from tood.detectors.prototype import nearest
from tood.detectors.statistics import Moments, unit
from tood.energy import logsumexp

MAHALANOBIS_PP = "Müller and Hein, Mahalanobis++: Improving OOD Detection via Feature Normalization, ICML 2025"
MOST_NUMBERS = 3 << 20  # of all covariances together, with which one per class is still cheap
OAS = "Chen et al., Shrinkage Algorithms for MMSE Covariance Estimation, IEEE Transactions on Signal Processing 2010"


def shrinkage_setting(grid: tuple[Any, ...] = (), refit: bool = False) -> Any:
    """Declare the weight of the identity in a covariance."""

    def allows(value: Any) -> bool:
        return value == "oas" or (isinstance(value, (int, float, np.number)) and bool(0 <= value <= 1))

    return setting("oas", allows, "'oas' or a number from 0 to 1", grid, refit)


def mean_variance(covariance: Float64Array, means: Float64Array) -> float:
    """Mean variance over dimensions; 0 if it is only rounding of the class means: one sample per class."""
    variance = float(np.trace(covariance)) / len(covariance)
    return variance if variance > np.finfo(np.float64).eps * float(np.mean(means**2)) else 0.0


def shrunk(covariance: Float64Array, samples: float, shrinkage: float | str) -> Float64Array:
    """A covariance shrunk towards its mean variance; ``shrinkage`` is the weight of the identity, or "oas"."""
    share = oas_shrinkage(covariance, samples) if shrinkage == "oas" else float(shrinkage)
    return (1 - share) * covariance + share * float(np.trace(covariance)) / len(covariance) * np.eye(len(covariance))


@register
class Typicality(Detector):
    """Minus the Mahalanobis distance of the feature's direction to the nearest class mean: Mahalanobis++ with OAS.

    One covariance for all classes, about their means, shrunk towards a multiple of the identity. It is fitted on the
    calibration set; ``fit`` takes any other labelled samples as well, such as ``[calibration, fit]``. Classes without
    a sample are ignored. With one sample per class the distance is Euclidean.

    Parameters
    ----------
    shrinkage:
        The weight of the identity, 0 to 1; ``"oas"`` estimates it from the samples.
    """

    name = "typicality"
    title = "Typicality"
    needs = FEATURES_AND_LABELS
    fits_on = "calibration"
    citation = f"{MAHALANOBIS_PP}; {OAS}"
    shrinkage: float | str = shrinkage_setting(("oas", 0.1, 0.3))

    def _directions(self, rows: Rows) -> FloatArray:
        return unit(rows.features.astype(np.float64, copy=False))

    def _fit(self, data: FitData) -> None:
        moments = Moments.of(data, part=self._directions)
        self.means_ = moments.class_means[moments.seen]  # [K, D]
        self.degrees_ = moments.total - len(self.means_)
        self.covariance_ = moments.within_covariance() * (moments.total / max(self.degrees_, 1))  # [D, D]

    def _prepare(self, dtype: np.dtype[Any]) -> Means:
        if mean_variance(self.covariance_, self.means_) == 0:
            return Means.of(self.means_)
        return Means.of(self.means_, whiten(shrunk(self.covariance_, self.degrees_, self.shrinkage)))

    def _score(self, rows: Rows, prepared: Means) -> FloatArray:
        return -nearest(self._directions(rows), prepared)


@register
class GMM(Detector):
    """Log-likelihood of the features under one Gaussian per class.

    ``log Σ_k π_k N(z | μ_k, Σ_k)`` with the share ``π_k``, mean and covariance of each class. Each covariance is shrunk
    towards a multiple of the identity, so it is invertible even if a class has fewer samples than dimensions. A class
    with a single sample takes the mean variance within the other classes; if all have one, the variance is 1. Classes
    without a fit sample are ignored.

    Parameters
    ----------
    covariance:
        ``"class"``: one covariance per class; ``"tied"``: one for all classes; ``"auto"``: one per class unless all
        together have more than three million numbers, because fitting and scoring cost K · D² per sample.
    shrinkage:
        Weight of the identity, 0 to 1, or ``"oas"``: the oracle approximating shrinkage of each covariance.
    """

    name = "gmm"
    title = "GMM"
    version = 2
    needs = FEATURES_AND_LABELS
    citation = "Mukhoti et al., Deep Deterministic Uncertainty: A New Simple Baseline, CVPR 2023"
    covariance: str = choice("auto", "class", "tied", refit=True)
    shrinkage: float | str = shrinkage_setting(refit=True)

    def _fit(self, data: FitData) -> None:
        moments = Moments.of(data)
        classes = np.flatnonzero(moments.seen)
        self.means_ = moments.class_means[classes]
        self.shares_ = moments.counts[classes] / moments.total
        within = moments.within_covariance()
        common = mean_variance(within, self.means_)
        if common == 0:  # Euclidean
            self.covariances_ = np.eye(len(within))[None]
            return
        affordable = len(classes) * len(within) ** 2 <= MOST_NUMBERS
        if self.covariance == "tied" or (self.covariance == "auto" and not affordable):
            self.covariances_ = shrunk(within, moments.total - len(classes), self.shrinkage)[None]
            return
        scatter = np.zeros((len(classes), *within.shape))
        for rows in data:
            for k, c in enumerate(classes):
                centred = rows.features[rows.classes == c] - self.means_[k]
                scatter[k] += centred.T @ centred
        counts = moments.counts[classes]
        self.covariances_ = np.stack([self._shrunk(s / n, n, common) for s, n in zip(scatter, counts, strict=True)])

    def _shrunk(self, covariance: Float64Array, samples: float, common: float) -> Float64Array:
        """A covariance shrunk towards its mean variance; the ``common`` variance if it has none itself."""
        if float(np.trace(covariance)) / len(covariance) <= 1e-12 * common:
            return common * np.eye(len(covariance))
        return shrunk(covariance, samples, self.shrinkage)

    def _prepare(self, dtype: np.dtype[Any]) -> tuple[Float64Array, list[Means]]:
        """``[K]``: ``log π_k - ½ log |Σ_k| - ½ D log 2π``; the means, whitened: all together if they share Σ."""
        values = np.linalg.eigvalsh(self.covariances_)
        count, dimensions = values.shape
        floor = 1e-10 * values.sum(axis=1, keepdims=True) / dimensions
        logs = np.log(np.maximum(values, floor)).sum(axis=1) + dimensions * np.log(2 * np.pi)
        covariances = self.covariances_ + floor[:, None] * np.eye(dimensions)
        means = self.means_[None] if count == 1 else self.means_[:, None]
        parts = zip(means, covariances, strict=True)
        return np.log(self.shares_) - 0.5 * logs, [Means.of(mean, whiten(covariance)) for mean, covariance in parts]

    def _score(self, rows: Rows, prepared: tuple[Float64Array, list[Means]]) -> FloatArray:
        constants, means = prepared
        terms = [part.squared(rows.features) for part in means]
        return logsumexp(constants - 0.5 * np.concatenate([own[:, None] + other for own, other in terms], axis=1))

"""Gaussian mixture of the features, one component per class."""

from __future__ import annotations

from typing import Any

import numpy as np

from tood.arrays import Float64Array, FloatArray
from tood.detectors.base import Detector, choice, setting
from tood.detectors.distance import FEATURES_AND_LABELS, Means, whiten
from tood.detectors.registry import register
from tood.detectors.rows import FitData, Rows
from tood.detectors.statistics import Moments
from tood.detectors.typicality import check_shrinkage, mean_variance, shrunk
from tood.energy import logsumexp

MOST_NUMBERS = 3 << 20  # of all covariances together, with which one per class is still cheap


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
    passes = 2
    covariance: str = choice("auto", "class", "tied", refit=True)
    shrinkage: float | str = setting("oas", check_shrinkage, refit=True)

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

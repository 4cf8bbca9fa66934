"""Gaussian mixture of the features, one component per class."""

from __future__ import annotations

from typing import Any, ClassVar, NamedTuple

import numpy as np

from tood.arrays import Float64Array, FloatArray
from tood.detectors.base import Detector, Grid
from tood.detectors.distance import FEATURES_AND_LABELS, Means, whiten
from tood.detectors.outputs import FitData, Rows
from tood.detectors.registry import register
from tood.detectors.statistics import Moments
from tood.detectors.typicality import Shrinkage, oas_shrinkage
from tood.energy import logsumexp

MOST_NUMBERS = 3 << 20  # of all covariances together, with which one per class is still cheap


class Components(NamedTuple):
    """Components of a mixture, ready to score."""

    means: Float64Array  # [K, D]
    whitening: Float64Array  # [K, D, D], or [1, D, D] if all components share it
    constants: Float64Array  # [K], log π_k - ½ log |Σ_k| - ½ D log 2π


@register
class GMM(Detector):
    """Log-likelihood of the features under one Gaussian per class.

    ``log Σ_k π_k N(z | μ_k, Σ_k)`` with the share ``π_k``, mean and covariance of each class. Each covariance is shrunk
    towards a multiple of the identity, so it is invertible even if a class has fewer samples than dimensions. A class
    with a single sample takes the mean variance within the other classes. Classes without a fit sample are ignored.

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
    grid: ClassVar[Grid] = {"covariance": ("auto", "class", "tied")}
    refit = frozenset({"covariance", "shrinkage"})
    passes = 2

    means_: Float64Array  # [K, D]
    covariances_: Float64Array  # [K or 1, D, D], shrunk
    shares_: Float64Array  # [K]

    def __init__(self, covariance: str = "auto", shrinkage: Shrinkage = "oas") -> None:
        self.covariance = covariance
        self.shrinkage = shrinkage

    def _check(self) -> None:
        self._one_of("covariance", self.grid["covariance"])
        if self.shrinkage != "oas":
            self._number("shrinkage", 0, 1)

    def _fit(self, data: FitData) -> None:
        moments = Moments.of(data)
        classes = np.flatnonzero(moments.seen)
        self.means_ = moments.class_means[classes]
        self.shares_ = moments.counts[classes] / moments.total
        within = moments.within_covariance()
        common = float(np.trace(within)) / len(within)
        affordable = len(classes) * len(within) ** 2 <= MOST_NUMBERS
        if self.covariance == "tied" or (self.covariance == "auto" and not affordable):
            self.covariances_ = self._shrunk(within, moments.total - len(classes), common)[None]
            return
        scatter = np.zeros((len(classes), *within.shape))
        for rows in data:
            for k, c in enumerate(classes):
                centred = rows.features[rows.classes == c] - self.means_[k]
                scatter[k] += centred.T @ centred
        counts = moments.counts[classes]
        self.covariances_ = np.stack([self._shrunk(s / n, n, common) for s, n in zip(scatter, counts, strict=True)])

    def _shrunk(self, covariance: Float64Array, samples: float, common: float) -> Float64Array:
        """A covariance shrunk towards its mean variance, or towards the ``common`` one if it has none itself."""
        identity = np.eye(len(covariance))
        own = float(np.trace(covariance)) / len(covariance)
        if own <= 1e-12 * common or own == 0:
            return identity * (common or 1.0)
        share = oas_shrinkage(covariance, samples) if self.shrinkage == "oas" else float(self.shrinkage)
        return (1 - share) * covariance + share * own * identity

    def _prepare(self, dtype: np.dtype[Any]) -> Components:
        dimensions = self.means_.shape[1]
        floor = 1e-10 * np.einsum("kdd->k", self.covariances_)[:, None] / dimensions
        values = np.maximum(np.linalg.eigvalsh(self.covariances_), floor)
        whitening = np.stack(
            [whiten(c + f * np.eye(dimensions)) for c, f in zip(self.covariances_, floor, strict=True)]
        )
        constants = np.log(self.shares_) - 0.5 * (np.log(values).sum(axis=1) + dimensions * np.log(2 * np.pi))
        return Components(self.means_, whitening, constants)

    def _score(self, rows: Rows, prepared: Components) -> FloatArray:
        if len(prepared.whitening) == 1:  # one product for all classes
            own, other = Means.of(prepared.means, prepared.whitening[0]).squared(rows.features)
            return logsumexp(prepared.constants - 0.5 * (own[:, None] + other))
        logs = np.empty((len(rows.features), len(prepared.means)))
        for k, mean in enumerate(prepared.means):
            y = (rows.features - mean) @ prepared.whitening[k]
            logs[:, k] = prepared.constants[k] - 0.5 * np.einsum("nd,nd->n", y, y)
        return logsumexp(logs)

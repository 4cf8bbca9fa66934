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
CONDITION = 1e6  # a larger ratio of eigenvalues needs every direction for itself, or digits are lost
PRODUCTS = 1 << 18  # products with directions held at once


class Components(NamedTuple):
    """Components of a mixture, ready to score.

    The squared distance to component k is ``rest_k ‖y - m_k‖² + sign Σ_r (w_kr · y - offset_kr)²``, and only the first
    with ``rest_k = 1`` if all components share their covariance.
    """

    constants: Float64Array  # [K], log π_k - ½ log |Σ_k| - ½ D log 2π
    means: Means  # whitened if all components share their covariance
    rest: Float64Array  # [K]
    sign: float
    ways: Float64Array  # [D, K · r], those of a component side by side
    offsets: Float64Array  # [K · r]


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
        if not isinstance(self.shrinkage, str) or self.shrinkage != "oas":
            self._number("shrinkage", 0, 1)

    def _fit(self, data: FitData) -> None:
        moments = Moments.of(data)
        classes = np.flatnonzero(moments.seen)
        self.means_ = moments.class_means[classes]
        self.shares_ = moments.counts[classes] / moments.total
        within = moments.within_covariance()
        common = float(np.trace(within)) / len(within)
        if common <= np.finfo(np.float64).eps * float(np.mean(self.means_**2)):  # one sample per class: Euclidean
            self.covariances_ = np.eye(len(within))[None]
            return
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
        if own <= 1e-12 * common:
            return identity * common
        share = oas_shrinkage(covariance, samples) if self.shrinkage == "oas" else float(self.shrinkage)
        return (1 - share) * covariance + share * own * identity

    def _prepare(self, dtype: np.dtype[Any]) -> Components:
        values, vectors = np.linalg.eigh(self.covariances_)
        count, dimensions = values.shape
        floor = 1e-10 * values.sum(axis=1, keepdims=True) / dimensions
        logs = np.log(np.maximum(values, floor)).sum(axis=1) + dimensions * np.log(2 * np.pi)
        constants = np.log(self.shares_) - 0.5 * logs
        if count == 1:  # one product for all classes
            whitening = whiten(self.covariances_[0] + floor[0] * np.eye(dimensions))
            none = np.empty((dimensions, 0))
            return Components(constants, Means.of(self.means_, whitening), np.ones(1), 0.0, none, none[0])
        values += floor
        least, largest = values[:, :1], values[:, -1:]
        rank = int((values > (1 + 1e-9) * least).sum(axis=1).max())
        if 2 * rank <= dimensions and (largest <= CONDITION * least).all():
            # Classes with few samples: all other eigenvalues are the least one, and their sum is what is left of ‖y‖².
            vectors = vectors[:, :, dimensions - rank :]
            weights, rest, sign = 1 / least - 1 / values[:, dimensions - rank :], 1 / least[:, 0], -1.0
        else:
            known = values > largest * dimensions * np.finfo(np.float64).eps
            weights, rest, sign = known / values, np.zeros(count), 1.0
        means = Means.of(self.means_)
        ways = vectors * np.sqrt(weights)[:, None]
        offsets = np.einsum("kd,kdr->kr", self.means_ - means.centre, ways)
        side_by_side = ways.transpose(1, 0, 2).reshape(dimensions, -1)
        return Components(constants, means, rest, sign, side_by_side, offsets.reshape(-1))

    def _score(self, rows: Rows, prepared: Components) -> FloatArray:
        constants, means, rest, sign, ways, offsets = prepared
        own, squared = means.squared(rows.features)
        squared += own[:, None]
        squared *= rest
        y, rank = rows.features - means.centre, ways.shape[1] // len(rest)
        step = max(1, PRODUCTS // max(1, len(y) * rank))
        for first in range(0, len(rest) if rank else 0, step):
            some = slice(first * rank, (first + step) * rank)
            along = (y @ ways[:, some] - offsets[some]).reshape(len(y), -1, rank)
            squared[:, first : first + step] += sign * np.einsum("nkr,nkr->nk", along, along)
        return logsumexp(constants - 0.5 * squared)

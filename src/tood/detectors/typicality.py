"""Mahalanobis distance of a feature's direction to the nearest class, from the few samples of a calibration set.

Features are divided by their length (Mahalanobis++). Each class is a Gaussian about its mean. All classes share one
covariance: the scatter within classes, shrunk towards a multiple of the identity by the amount that OAS estimates. It
has full rank however few samples there are.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tood.arrays import Float64Array, FloatArray, IntArray
from tood.calibration.statistics import oas_shrinkage
from tood.detectors.base import Detector, flag, setting
from tood.detectors.distance import FEATURES_AND_LABELS, Means, whiten
from tood.detectors.prototype import nearest
from tood.detectors.registry import register
from tood.detectors.rows import FitData, Rows
from tood.detectors.rowwise import unit
from tood.detectors.statistics import Moments

MAHALANOBIS_PP = "Müller and Hein, Mahalanobis++: Improving OOD Detection via Feature Normalization, ICML 2025"
OAS = "Chen et al., Shrinkage Algorithms for MMSE Covariance Estimation, IEEE Transactions on Signal Processing 2010"


def check_shrinkage(detector: Detector, name: str) -> None:
    """Raise unless a hyper-parameter is "oas" or a number from 0 to 1."""
    if isinstance(getattr(detector, name), str):
        detector._one_of(name, ("oas",))
    else:
        detector._number(name, 0, 1)


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
    normalize:
        Divide features by their length first.
    shrinkage:
        The weight of the identity, 0 to 1; ``"oas"`` estimates it from the samples.
    """

    name = "typicality"
    title = "Typicality"
    needs = FEATURES_AND_LABELS
    fits_on = "calibration"
    citation = f"{MAHALANOBIS_PP}; {OAS}"
    normalize: bool = flag(True, refit=True)
    shrinkage: float | str = setting("oas", check_shrinkage, grid=("oas", 0.1, 0.3))

    def _directions(self, rows: Rows) -> FloatArray:
        features = rows.features.astype(np.float64, copy=False)
        return unit(features) if self.normalize else features

    def _fit(self, data: FitData) -> None:
        moments = Moments.of(data, part=self._directions)
        self.classes_: IntArray = np.flatnonzero(moments.seen)  # [K], the logit column of each mean
        self.means_ = moments.class_means[self.classes_]  # [K, D]
        self.degrees_ = moments.total - len(self.classes_)
        self.covariance_ = moments.within_covariance() * (moments.total / max(self.degrees_, 1))  # [D, D]

    def _prepare(self, dtype: np.dtype[Any]) -> Means:
        if mean_variance(self.covariance_, self.means_) == 0:
            return Means.of(self.means_)
        return Means.of(self.means_, whiten(shrunk(self.covariance_, self.degrees_, self.shrinkage)))

    def _score(self, rows: Rows, prepared: Means) -> FloatArray:
        return -nearest(self._directions(rows), prepared)

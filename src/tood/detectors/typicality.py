"""Mahalanobis distance of a feature's direction to the nearest class, from the few samples of a calibration set.

Features are divided by their length (Mahalanobis++). Each class is a Gaussian about its mean. All classes share one
covariance: the scatter within classes, shrunk towards a multiple of the identity by the amount that OAS estimates. It
has full rank however few samples there are.
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal, NamedTuple, TypeAlias

import numpy as np

from tood.arrays import Float64Array, FloatArray, IntArray
from tood.detectors.base import Detector, Grid
from tood.detectors.distance import FEATURES_AND_LABELS, Means, whiten
from tood.detectors.prototype import nearest
from tood.detectors.registry import register
from tood.detectors.rows import FitData, Rows
from tood.detectors.rowwise import unit
from tood.detectors.statistics import MOMENT_BLOCK, Moments
from tood.errors import ToodError

Shrinkage: TypeAlias = "float | Literal['oas']"

MAHALANOBIS_PP = "Müller and Hein, Mahalanobis++: Improving OOD Detection via Feature Normalization, ICML 2025"
OAS = "Chen et al., Shrinkage Algorithms for MMSE Covariance Estimation, IEEE Transactions on Signal Processing 2010"


def oas_shrinkage(covariance: Float64Array, samples: float) -> float:
    """The weight of the identity in the oracle approximating shrinkage, 0 to 1.

    Chen et al. 2010, Eq. 23, without its terms in 2 / D, as scikit-learn has it; they matter below ten dimensions.

    Parameters
    ----------
    covariance:
        ``[D, D]``, the mean of ``x xᵀ`` over centred samples; its scale does not matter.
    samples:
        Number of samples; for a covariance about K class means, minus K.
    """
    square = float(np.mean(covariance**2))  # tr(S²) / D²
    mean = float(np.trace(covariance)) / len(covariance)
    below = (samples + 1) * (square - mean**2 / len(covariance))
    return min(1.0, (square + mean**2) / below) if below > 0 else 1.0


class Classes(NamedTuple):
    """Class means and the covariance about them."""

    means: Float64Array  # [K, D]
    covariance: Float64Array  # [D, D], the scatter divided by its degrees of freedom
    degrees: float  # samples minus classes

    @classmethod
    def of(cls, moments: Moments, order: IntArray) -> Classes:
        """From the classes in ``order``, which must be all classes that have samples."""
        degrees = moments.total - len(order)
        return cls(moments.class_means[order], moments.within_covariance() * (moments.total / max(degrees, 1)), degrees)

    def shrunk(self, shrinkage: Shrinkage) -> tuple[Float64Array, float]:
        """The whitening matrix ``[D, r]``, and the weight of the scatter itself in the covariance it inverts."""
        mean = float(np.trace(self.covariance)) / len(self.covariance)
        if mean <= np.finfo(np.float64).eps * float(np.mean(self.means**2)):  # one sample per class: Euclidean
            return np.eye(len(self.covariance)), 0.0
        share = oas_shrinkage(self.covariance, self.degrees) if shrinkage == "oas" else float(shrinkage)
        covariance = (1 - share) * self.covariance
        covariance[np.diag_indices_from(covariance)] += share * mean
        return whiten(covariance), (1 - share) / max(self.degrees, 1)


class _Directions(Detector):
    """Base of detectors that use class means and covariance of unit features."""

    refit = frozenset({"normalize"})
    normalize: bool
    shrinkage: Shrinkage

    means_: Float64Array  # [K, D]
    covariance_: Float64Array  # [D, D]
    degrees_: float

    def _check(self) -> None:
        if not isinstance(self.normalize, (bool, np.bool_)):
            raise ToodError(f"normalize: expected True or False, found {self.normalize!r}")
        if isinstance(self.shrinkage, str):
            self._one_of("shrinkage", ("oas",))
        else:
            self._number("shrinkage", 0, 1)

    def _directions(self, rows: Rows) -> Float64Array:
        features: Float64Array = rows.features.astype(np.float64, copy=False)
        if self.normalize:
            features = np.asarray(unit(features), dtype=np.float64)
        return features

    def _moments(self, data: FitData) -> Moments | None:
        """Sums and products of the fit features; None if there are no features."""
        moments: Moments | None = None
        for block in data:
            step = max(256, MOMENT_BLOCK // max(1, block.features.shape[1]))
            for start in range(0, len(block.features), step):  # directions of a few rows stay in the cache
                rows = block.block(start, start + step)
                z = self._directions(rows)
                if moments is None and z.shape[1]:
                    moments = Moments(z.mean(axis=0), data.columns, scatter=True)
                if moments is not None:
                    moments.add(z, rows.classes)
        return moments

    def _classes(self) -> Classes:
        return Classes(self.means_, self.covariance_, self.degrees_)


@register
class Typicality(_Directions):
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
    grid: ClassVar[Grid] = {"shrinkage": ("oas", 0.1, 0.3)}

    classes_: IntArray  # [K], the logit column of each mean

    def __init__(self, normalize: bool = True, shrinkage: Shrinkage = "oas") -> None:
        self.normalize = normalize
        self.shrinkage = shrinkage

    def _fit(self, data: FitData) -> None:
        moments = self._moments(data)
        assert moments is not None  # features are needed
        self.classes_ = np.flatnonzero(moments.seen)
        self.means_, self.covariance_, self.degrees_ = Classes.of(moments, self.classes_)

    def _prepare(self, dtype: np.dtype[Any]) -> Means:
        return Means.of(self.means_, self._classes().shrunk(self.shrinkage)[0])

    def _score(self, rows: Rows, prepared: Means) -> FloatArray:
        return -nearest(self._directions(rows), prepared)

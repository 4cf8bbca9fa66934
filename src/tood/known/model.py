"""Gaussians of known classes with one shared covariance, and of the classes that nobody has added yet. NumPy only."""

from __future__ import annotations

import hashlib
from typing import Literal, NamedTuple

import numpy as np

from tood.arrays import Float64Array, FloatArray
from tood.calibration.statistics import oas_shrinkage
from tood.errors import ToodError

__all__ = ["ClassSums", "Model", "lowest_hashes", "make_model"]

LEAST_SHRINKAGE = 0.001  # of "auto": keeps constant dimensions from deciding alone


class ClassSums(NamedTuple):
    """Exact sums of one class, and some of its samples."""

    size: int
    mean: Float64Array  # [D]
    rows: FloatArray  # [r, D]: all samples, or those with the lowest hashes
    scatter: Float64Array | None = None  # [D, D] about the mean; None if `rows` are all samples, or if dropped

    @property
    def own_scatter(self) -> Float64Array | None:
        """``[D, D]``, from the samples if all are there; None if it was dropped."""
        if len(self.rows) < self.size:
            return self.scatter
        return (self.rows - self.mean).T @ (self.rows - self.mean)


class Model(NamedTuple):
    """Everything that scoring needs. In its coordinates W is the identity and W + B is diagonal."""

    origin: Float64Array  # [D], the mean of the class means
    whitening: Float64Array  # [D, D]
    background: Float64Array  # [D], the inverse diagonal of W + B
    points: Float64Array  # [K, D], class means in these coordinates
    widths: Float64Array  # [K], 1 + 1 / n: a mean of n samples is itself uncertain
    dimensions: float  # mean squared distance of a sample from the true mean of its class
    step: float  # weight of one sample's outer product in W

    def scores(self, vectors: FloatArray) -> Float64Array:
        """``[n, K]``: squared distance to the background minus that to each class."""
        y = (vectors - self.origin) @ self.whitening
        squared = (y**2).sum(axis=1, keepdims=True) - 2 * y @ self.points.T + (self.points**2).sum(axis=1)
        own = squared / self.widths + self.dimensions * np.log(self.widths)
        return (y**2 @ self.background)[:, None] - own

    def left_out(self, place: int, known: ClassSums) -> Float64Array:
        """``[r]``: the score of each sample of a class for this class, as if it had not been added.

        Without sample x, the mean of its class moves by ``(x - mean) / (n - 1)`` and the shared scatter loses
        ``n / (n - 1) (x - mean)(x - mean)ᵀ``; Sherman and Morrison give both inverses.
        """
        y = (known.rows - self.origin) @ self.whitening
        apart = y - self.points[place]
        width = known.size / (known.size - 1)
        lost, squared = self.step * width, (apart**2).sum(axis=1)
        change = lost * ((y * apart) @ self.background) ** 2 / (1 - lost * (apart**2 @ self.background))
        own = width * squared / (1 - lost * squared) + self.dimensions * np.log(width)
        return y**2 @ self.background + change - own


def make_model(
    means: Float64Array, sizes: Float64Array, scatter: Float64Array, freedom: float, shrinkage: float | Literal["auto"]
) -> Model:
    """Coordinates in which the shared covariance is the identity and that of the background diagonal."""
    covariance = scatter / max(freedom, 1)
    classes, width = means.shape
    variance = float(np.trace(covariance)) / width
    if variance <= 1e-24 * float((means**2).max()):  # rounding of equal samples
        raise ToodError("vectors: expected a class with two different samples, found none; add more samples")
    automatic = max(LEAST_SHRINKAGE, oas_shrinkage(covariance, freedom))
    share = automatic if shrinkage == "auto" else float(shrinkage)
    identity = np.eye(width)
    origin = means.mean(axis=0)
    apart = means - origin
    # One more class, isotropic: as far out as the others are on average; of a single class, as wide as it is.
    spread = float((apart**2).sum()) / (classes - 1) / width if classes > 1 else variance
    inverse = np.linalg.inv(np.linalg.cholesky((1 - share) * covariance + share * variance * identity))
    between = inverse @ (apart.T @ apart + spread * identity) @ inverse.T / classes
    ratios, axes = np.linalg.eigh(between)
    whitening = inverse.T @ axes
    dimensions = width if share == 1 else (width - share * variance * float((whitening**2).sum())) / (1 - share)
    step = (1 - share) / freedom
    return Model(origin, whitening, 1 / (1 + ratios), apart @ whitening, 1 + 1 / sizes, dimensions, step)


def lowest_hashes(rows: FloatArray, most: int) -> FloatArray:
    """The rows with the lowest hashes: a random choice, the same in any order and for any parts."""
    hashes = [hashlib.blake2b(row.tobytes(), digest_size=8).hexdigest() for row in rows.astype(np.float64) + 0.0]
    return rows[np.argsort(np.array(hashes), kind="stable")[:most]]

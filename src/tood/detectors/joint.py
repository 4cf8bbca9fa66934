"""TOOD with features: its score plus the cosine of the feature to the nearest class mean."""

from __future__ import annotations

from typing import Any, NamedTuple, get_args

import numpy as np

from tood.arrays import Float64Array, FloatArray
from tood.calibration import Channels, Variant
from tood.calibration.statistics import least_spread
from tood.detectors.base import choice, number
from tood.detectors.calibrated import _Calibrated
from tood.detectors.prototype import TOOD_PAPER
from tood.detectors.registry import register
from tood.detectors.rows import FitData, Rows
from tood.detectors.rowwise import unit

WEIGHT = 0.5  # of the cosine; estimated weights were no better


class Prepared(NamedTuple):
    """``S = channels + cosine · max_c cos(z, μ_c)``."""

    channels: Channels  # TOOD's score, standardised
    means: Float64Array | None  # [K, D] of length 1; none without features
    cosine: float


@register
class TOODJoint(_Calibrated):
    """TOOD's score plus the cosine of the feature to the nearest class mean, each in units of its calibration spread.

    ``S(x) = (T(x) - mean) / std + ½ (c(x) - mean) / std`` with T the score of :class:`tood.TOOD` and c the largest
    cosine to a class mean. Class means, means and deviations are those of the calibration samples. Without features at
    ``fit`` it is TOOD, and says so.

    Parameters
    ----------
    margin, variant:
        As for :class:`tood.TOOD`.
    """

    name = "tood_joint"
    title = "TOOD with features"
    version = 11
    optional = frozenset({"features"})
    citation = f"{TOOD_PAPER}; how features are added: this library"
    passes = 2
    reference = "latest"
    margin: float = number(0.5, 0, grid=(0.0, 0.5), refit=True)
    variant: Variant = choice(*get_args(Variant), searched=False, refit=True)  # "background" first

    def _fit(self, data: FitData) -> None:
        super()._fit(data)
        blocks = list(data)
        logits, features, labels = (
            np.concatenate([getattr(block, part) for block in blocks]) for part in ("logits", "features", "classes")
        )
        if features.shape[1] == 0:
            self._warn("there are no features; this is TOOD, from logits alone")
            return
        z = np.asarray(unit(features.astype(np.float64)))
        own = np.unique(labels, return_inverse=True)[1]
        sums = np.stack([features[own == k].sum(axis=0, dtype=np.float64) for k in range(own.max() + 1)])
        self.means_: Float64Array = np.asarray(unit(sums))  # [K, D], of length 1
        scores = super()._prepare(np.dtype(np.float64)).evaluate(logits.astype(np.float64), assign=False)[0]
        nearest = (z @ self.means_.T).max(axis=1)
        factors = np.array([1.0, WEIGHT]) / [_spread(scores), _spread(nearest)]
        # Factor of TOOD's score, factor of the cosine, offset.
        self.mixture_ = np.array([*factors, -factors @ [scores.mean(), nearest.mean()]])

    def _prepare(self, dtype: np.dtype[Any]) -> Any:  # Prepared
        channels = super()._prepare(dtype)
        if not hasattr(self, "means_"):
            return Prepared(channels, None, 0.0)
        factor, cosine, offset = self.mixture_.tolist()
        standardised = channels._replace(
            gain=factor * channels.gain, energy=factor * channels.energy, offset=factor * channels.offset + offset
        )
        return Prepared(standardised, self.means_, cosine)

    def _score(self, rows: Rows, prepared: Any) -> FloatArray:
        scores: FloatArray = prepared.channels.evaluate(rows.logits, assign=False)[0]
        if prepared.means is None:
            return scores
        z = np.asarray(unit(rows.features.astype(np.float64)))
        # 1 - d² / 2, as exported graphs have it: a feature of length 0, which has no direction, counts as ½.
        nearest = (z @ prepared.means.T).max(axis=1) + (1 - np.einsum("nd,nd->n", z, z)) / 2
        return scores + prepared.cosine * nearest


def _spread(values: Float64Array) -> float:
    """The deviation; infinite if values do not vary, so that they say nothing."""
    deviation, mean = float(values.std()), np.array(values.mean())
    return deviation if deviation > least_spread(mean) else np.inf

"""TOOD and its temperature baseline as detectors: per-task energies normalised with a calibration set."""

from __future__ import annotations

from typing import Any, get_args

import numpy as np
import numpy.typing as npt

from tood.arrays import Float64Array, FloatArray, IntArray
from tood.calibration import TOOD, Channels, Reference, Variant
from tood.calibration.statistics import least_spread
from tood.detectors.base import Detector, FitData, Rows, choice, number, register
from tood.detectors.prototype import TOOD_PAPER
from tood.detectors.statistics import class_means, unit

WEIGHT = 0.5  # of the cosine in tood_joint; estimated weights were no better


class _Calibrated(Detector):
    """A :class:`tood.TOOD` behind the interface of detectors."""

    needs = frozenset({"logits", "labels"})
    fits_on = "calibration"
    citation = TOOD_PAPER
    variant: Variant
    margin: float
    reference: Reference

    columns_: IntArray  # [C], the columns of all tasks, task by task
    sizes_: IntArray  # [N]
    compiled_: npt.NDArray[np.float64]  # [2, N]: location and scale of each channel
    units_: npt.NDArray[np.float64]  # [4]: margin, gain, offset and weight of the energy

    def _check(self) -> None:
        self._calibrator([[0]])  # raises for invalid settings

    def _calibrator(self, tasks: Any) -> TOOD:
        return TOOD(tasks, variant=self.variant, margin=self.margin, reference=self.reference)

    def _fit(self, data: FitData) -> None:
        partition, blocks = data.tasks(self.name), list(data)
        calibrator = self._calibrator(partition)
        logits, labels = (np.concatenate([getattr(b, part) for b in blocks]) for part in ("logits", "classes"))
        calibrator._fit(logits, labels)
        arrays = calibrator.channels_.arrays()
        self.columns_, self.sizes_, self.units_ = (arrays[name] for name in ("columns", "sizes", "units"))
        self.compiled_ = np.stack([arrays["location"], arrays["scale"]])

    def _prepare(self, dtype: np.dtype[Any]) -> Any:
        """The compiled score."""
        location, scale = self.compiled_
        fitted = {"columns": self.columns_, "sizes": self.sizes_, "units": self.units_}
        channels = Channels.from_arrays({**fitted, "location": location, "scale": scale})
        return channels._replace(margin=float(self.margin))

    def _score(self, rows: Rows, prepared: Any) -> FloatArray:
        return prepared.evaluate(rows.logits, assign=False)[0]


class _Variant(_Calibrated):
    """One variant of TOOD.

    Parameters
    ----------
    margin:
        λ ≥ 0, the weight of the gap between the two largest normalised energies.
    reference:
        Whose statistics set the units of the score: ``"latest"``, ``"oldest"``, ``"widest"`` or ``"mean"``; the
        ranking does not depend on it.
    """

    margin: float = number(0.5, 0, grid=(0.0, 0.5, 1.0))
    reference: Reference = choice("latest", "oldest", "widest", "mean", searched=False, refit=True)


@register
class TOODMeanShift(_Variant):
    """TOOD with each task's energies shifted by their mean (paper, Eq. mean_shift)."""

    name = "tood_mean_shift"
    title = "mean shift (paper)"
    variant = "mean_shift"


@register
class TOODRobustAnchor(_Variant):
    """TOOD with each task's energies centred by their median and divided by their MAD (paper, Eq. robust)."""

    name = "tood_robust_anchor"
    title = "robust anchor (paper)"
    variant = "robust_anchor"


@register
class TOODDefault(_Variant):
    """TOOD's default: the energy, corrected by channels that are re-centred by other tasks' samples."""

    name = "tood"
    title = "TOOD"
    variant = "background"
    citation = f"{TOOD_PAPER}; the default variant: this library"


@register
class Temperature(_Calibrated):
    """Each task's energy divided by its standard deviation, not re-centred (paper, Eq. temp_scale).

    Parameters
    ----------
    margin:
        λ ≥ 0, the weight of the gap between the two largest scaled energies.
    """

    name = "temperature"
    title = "Temperature"
    variant = "temperature"
    reference = "latest"
    margin: float = number(0.0, 0, grid=(0.0, 0.5, 1.0))


@register
class TOODJoint(_Calibrated):
    """TOOD's score plus the cosine of the feature to the nearest class mean, each in units of its calibration spread.

    ``S(x) = (T(x) - mean) / std + ½ (c(x) - mean) / std`` with T the score of :class:`tood.TOOD` and c the largest
    cosine to a class mean. Class means, means and deviations are those of the calibration samples.

    Parameters
    ----------
    margin, variant:
        As for :class:`tood.TOOD`.
    """

    name = "tood_joint"
    title = "TOOD with features"
    version = 11
    needs = frozenset({"logits", "features", "labels"})
    citation = f"{TOOD_PAPER}; how features are added: this library"
    reference = "latest"
    margin: float = number(0.5, 0, grid=(0.0, 0.5), refit=True)
    variant: Variant = choice(*get_args(Variant), searched=False, refit=True)  # "background" first

    def _fit(self, data: FitData) -> None:
        super()._fit(data)
        means, counts = class_means(data, lambda rows: (rows.features, rows.classes))
        self.means_ = np.asarray(unit(means[counts > 0]))  # [K, D], of length 1
        channels = super()._prepare(np.dtype(np.float64))
        known = np.concatenate([channels.evaluate(rows.logits.astype(np.float64))[0] for rows in data])
        nearest = np.concatenate([self._cosine(rows) for rows in data])
        factors = np.array([1.0, WEIGHT]) / [_spread(known), _spread(nearest)]
        # Factor of TOOD's score, factor of the cosine, offset.
        self.mixture_ = np.array([*factors, -factors @ [known.mean(), nearest.mean()]])

    def _cosine(self, rows: Rows) -> Float64Array:
        """``[n]``: the largest cosine to a class mean; ½ for a feature of length 0, which has no direction."""
        z = np.asarray(unit(rows.features.astype(np.float64)))
        return (z @ self.means_.T).max(axis=1) + (1 - np.einsum("nd,nd->n", z, z)) / 2

    def _score(self, rows: Rows, prepared: Any) -> FloatArray:
        factor, cosine, offset = self.mixture_.tolist()
        return factor * super()._score(rows, prepared) + cosine * self._cosine(rows) + offset


def _spread(values: Float64Array) -> float:
    """The deviation; infinite if values do not vary, so that they say nothing."""
    deviation, mean = float(values.std()), np.array(values.mean())
    return deviation if deviation > least_spread(mean) else np.inf

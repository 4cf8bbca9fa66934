"""TOOD and its temperature baseline as detectors: per-task energies normalised with a calibration set."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from tood.arrays import FloatArray, IntArray
from tood.calibration import TOOD, Channels, Reference, Variant
from tood.calibration.statistics import OWN, REST, ROBUST, ChannelDiagnostics, diagnose
from tood.detectors.base import Detector, choice, number
from tood.detectors.prototype import TOOD_PAPER
from tood.detectors.registry import register
from tood.detectors.rows import FitData, Rows

STATISTICS = (*OWN, *ROBUST, *REST)


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
    statistics_: npt.NDArray[np.float64]  # [8, N], in the order of STATISTICS
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
        self.statistics_ = np.stack([calibrator.statistics_[name] for name in STATISTICS])
        arrays = calibrator.channels_.arrays()
        self.columns_, self.sizes_, self.units_ = (arrays[name] for name in ("columns", "sizes", "units"))
        self.compiled_ = np.stack([arrays["location"], arrays["scale"]])

    def _prepare(self, dtype: np.dtype[Any]) -> Any:
        """The compiled score."""
        location, scale = self.compiled_
        fitted = {"columns": self.columns_, "sizes": self.sizes_, "units": self.units_}
        channels = Channels.from_arrays({**fitted, "location": location, "scale": scale})
        return channels._replace(margin=float(self.margin))

    @property
    def diagnostics_(self) -> list[ChannelDiagnostics]:
        """Per task, as :attr:`tood.TOOD.diagnostics_`."""
        self._check_fitted()
        return diagnose(dict(zip(STATISTICS, self.statistics_, strict=True)))

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

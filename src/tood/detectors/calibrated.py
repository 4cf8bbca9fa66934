"""TOOD and its temperature baseline as detectors: per-task energies normalised with a calibration set."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from tood.arrays import FloatArray, IntArray
from tood.calibration import TOOD, Reference, Variant
from tood.detectors.base import Detector, Grid
from tood.detectors.outputs import FitData, Rows
from tood.detectors.prototype import TOOD_PAPER
from tood.detectors.registry import register
from tood.diagnostics import ChannelDiagnostics, diagnose
from tood.partition import Partition
from tood.statistics import OWN, REST

STATISTICS = (*OWN, *REST)


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
    statistics_: npt.NDArray[np.float64]  # [9, N], in the order of STATISTICS

    def _check(self) -> None:
        self._calibrator([[0]])._check_parameters()

    def _calibrator(self, tasks: Any) -> TOOD:
        return TOOD(tasks, variant=self.variant, margin=self.margin, reference=self.reference)

    def _fit(self, data: FitData) -> None:
        partition, blocks = data.tasks(self.name), list(data)
        calibrator = self._calibrator(partition)
        logits, labels = (np.concatenate([getattr(b, part) for b in blocks]) for part in ("logits", "classes"))
        if message := calibrator._dead_winner(calibrator._fit(logits, labels)):
            self._warn(message)
        self.statistics_ = np.stack([calibrator.statistics_[name] for name in STATISTICS])
        self.columns_ = np.concatenate([np.asarray(task, dtype=np.int64) for task in partition])
        self.sizes_ = np.array([len(task) for task in partition], dtype=np.int64)

    def _prepare(self, dtype: np.dtype[Any]) -> TOOD:
        partition = Partition(np.split(self.columns_, np.cumsum(self.sizes_)[:-1]))
        calibrator = self._calibrator(partition)
        calibrator.partition_ = partition
        calibrator.statistics_ = dict(zip(STATISTICS, self.statistics_, strict=True))
        return calibrator

    @property
    def diagnostics_(self) -> list[ChannelDiagnostics]:
        """Per task, as :attr:`tood.TOOD.diagnostics_`."""
        self._check_fitted()
        return diagnose(dict(zip(STATISTICS, self.statistics_, strict=True)))

    def _score(self, rows: Rows, prepared: TOOD) -> FloatArray:
        return prepared.score(rows.logits)


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

    grid: ClassVar[Grid] = {"margin": (0.0, 0.5, 1.0)}

    def __init__(self, margin: float = 0.5, reference: Reference = "latest") -> None:
        self.margin = margin
        self.reference = reference


@register
class TOODMeanShift(_Variant):
    """TOOD with each task's energies shifted by their mean (paper, Eq. mean_shift)."""

    name = "tood_mean_shift"
    title = "TOOD (mean shift)"
    variant = "mean_shift"


@register
class TOODRobustAnchor(_Variant):
    """TOOD with each task's energies centred by their median and divided by their MAD (paper, Eq. robust)."""

    name = "tood_robust_anchor"
    title = "TOOD (robust anchor)"
    variant = "robust_anchor"


@register
class TOODShrinkage(_Variant):
    """TOOD with each channel moved as far as it distinguishes its own task (``TOOD(variant="shrinkage")``, default)."""

    name = "tood_shrinkage"
    version = 7
    title = "TOOD (shrinkage)"
    variant = "shrinkage"
    citation = f"{TOOD_PAPER}; how far each channel is moved: this library"


@register
class TOODAuto(_Variant):
    """TOOD with each channel moved only as far as it separates its own task from others (``TOOD(variant="auto")``)."""

    name = "tood_auto"
    title = "TOOD (auto)"
    variant = "auto"
    citation = f"{TOOD_PAPER}; how far each channel is moved: this library"


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
    grid: ClassVar[Grid] = {"margin": (0.0, 0.5, 1.0)}

    def __init__(self, margin: float = 0.0) -> None:
        self.margin = margin

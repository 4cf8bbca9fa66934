"""The default of TOOD without its rule for loud channels, as a detector to run beside it.

From this folder: ``tood run --stream cifar100-50 --learner icarl --preset frozen --seed 1 --store figures --detectors
energy,tood_shrinkage,not_lowered:NotLowered``
"""

from __future__ import annotations

from typing import Any

from tood import TOOD, detectors
from tood.calibration import Channels, shrunk_channels
from tood.detectors.calibrated import TOODShrinkage


class Calibrator(TOOD):
    """Variant "shrinkage" in which no channel is loud."""

    def channels(self) -> Channels:
        """As the default, except for loud channels."""
        s = self.statistics_
        location, scale = shrunk_channels(s, loud=1e9)
        cap = (s["mean"] + s["std"] - location) / scale if len(scale) > 1 else None
        return Channels(location, scale, self._of_reference(scale), self._of_reference(location), cap)


@detectors.register
class NotLowered(TOODShrinkage):
    """The default of TOOD without its rule for loud channels."""

    name = "not_lowered"
    title = "TOOD (shrinkage), no channel lowered"
    version = 1

    def _calibrator(self, tasks: Any) -> TOOD:
        return Calibrator(tasks, variant=self.variant, margin=self.margin, reference=self.reference)

"""What the adapters share: a calibrator, a detector or a detector's name behind one ``fit`` and one ``score``."""

from __future__ import annotations

from typing import Any, TypeAlias

from tood.calibration import TOOD
from tood.detectors import Detector, Head, Outputs, create
from tood.errors import ToodError

__all__ = ["Adapted", "AnyDetector"]

AnyDetector: TypeAlias = "str | Detector | TOOD"


class Adapted:
    """A detector that reads logits or features, whatever it was given as; higher = in-distribution, as everywhere.

    Parameters
    ----------
    detector:
        A name such as ``"vim"``, a :class:`~tood.detectors.Detector`, or a :class:`~tood.TOOD`; fitted or not.
    tasks:
        The logit columns of each task; the TOOD detectors need them, a :class:`~tood.TOOD` has its own.
    """

    def __init__(self, detector: AnyDetector, tasks: Any = None) -> None:
        self.detector = create(detector) if isinstance(detector, str) else detector
        if not isinstance(self.detector, (Detector, TOOD)):
            raise ToodError(f"detector: expected a name, a Detector or a TOOD, found {type(detector).__name__}")
        self.tasks = tasks
        needs = {"logits"} if isinstance(self.detector, TOOD) else self.detector.needs
        if "network" in needs:
            raise ToodError(
                f"detector: {self.name} runs the network again; adapters take detectors of logits or features"
            )
        self.reads_features = not {"features", "head"}.isdisjoint(needs)
        self.requires_fit = isinstance(self.detector, TOOD) or self.detector.fits_on != "none"
        if not self.requires_fit and "head" not in needs:
            self.fit(None, None)

    @property
    def name(self) -> str:
        """The detector's name, for messages."""
        return "TOOD" if isinstance(self.detector, TOOD) else self.detector.name

    def fit(self, logits: Any, labels: Any, features: Any = None, head: Head | None = None) -> None:
        """Fit on ID ``logits [n, C]`` and ``labels [n]``, with ``features [n, D]`` and the head where they are read."""
        if isinstance(self.detector, TOOD):
            self.detector.fit(logits, labels)
        else:
            self.detector.fit(Outputs(logits, features, labels), partition=self.tasks, head=head)

    def score(self, logits: Any, features: Any = None) -> Any:
        """``[n]``: of the kind and on the device of ``logits``."""
        if isinstance(self.detector, TOOD):
            return self.detector.score(logits)
        return self.detector.score(Outputs(logits, features))

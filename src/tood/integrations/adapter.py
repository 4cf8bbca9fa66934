"""Code shared by the adapters: one ``fit`` and ``score`` for calibrators and detectors, and import errors."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypeAlias

from tood.calibration import TOOD
from tood.detectors import Detector, Head, Outputs, create
from tood.errors import ToodError

__all__ = ["Adapted", "AnyDetector", "PeerError", "peer"]

AnyDetector: TypeAlias = "str | Detector | TOOD"


class PeerError(ToodError, ImportError):
    """A library is not installed, or cannot be imported; the message is one line."""


@contextmanager
def peer(library: str, install: str, purpose: str) -> Iterator[None]:
    """Context for importing another library: a missing or broken one is an error of one line.

    Parameters
    ----------
    library:
        The top-level module.
    install:
        What to give to ``pip install``.
    purpose:
        What needs it, for the message.
    """
    try:
        yield
    except Exception as error:  # such as torchvision's RuntimeError "operator torchvision::nms does not exist"
        if isinstance(error, ModuleNotFoundError) and (error.name or "").partition(".")[0] in (library, "torch"):
            raise PeerError(f"{purpose} needs {library}: pip install {install}") from None
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
        raise PeerError(f"{purpose} needs {library}, which is installed but does not import ({reason})") from None


class Adapted:
    """A detector of logits or features, given by name, as a Detector or as a TOOD; higher = in-distribution.

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
        self.name = getattr(self.detector, "name", "TOOD")
        needs = {"logits"} if isinstance(self.detector, TOOD) else self.detector.needs
        if "network" in needs:
            raise ToodError(
                f"detector: {self.name} runs the network again; adapters take detectors of logits or features"
            )
        self.needs_features = not {"features", "head"}.isdisjoint(needs)
        self.reads_features = self.needs_features or "features" in getattr(self.detector, "optional", ())
        self.requires_fit = isinstance(self.detector, TOOD) or self.detector.fits_on != "none"
        if not self.requires_fit and "head" not in needs:
            self.fit(None, None)

    def fit(self, logits: Any, labels: Any, features: Any = None, head: Head | None = None) -> None:
        """Fit on ID ``logits [n, C]`` and ``labels [n]``, with ``features [n, D]`` and the head if they are read."""
        if isinstance(self.detector, TOOD):
            self.detector.fit(logits, labels)
        else:
            self.detector.fit(Outputs(logits, features, labels), partition=self.tasks, head=head)

    def score(self, logits: Any, features: Any = None) -> Any:
        """Scores ``[n]``, of the same kind and on the same device as ``logits``."""
        known: Any = self.detector
        return known.score(logits if isinstance(known, TOOD) else Outputs(logits, features))

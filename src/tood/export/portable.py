"""The parameters of a fitted calibrator or detector that its ONNX graph and its torch module share."""

from __future__ import annotations

from typing import Any, NamedTuple, TypeAlias

import numpy as np

from tood.arrays import Float64Array, IntArray
from tood.calibration import TOOD, Channels
from tood.decision import Conformal
from tood.detectors.joint import TOODJoint
from tood.detectors.typicality import Typicality
from tood.errors import ToodError

__all__ = ["Exportable", "Nearest", "Portable", "portable"]

Exportable: TypeAlias = TOOD | Typicality | TOODJoint | Conformal

SHORTEST = 1e-12  # a feature shorter than this has no direction; float32 squares underflow a little below


class Nearest(NamedTuple):
    """Squared distance of whitened features to the nearest class mean.

    ``‖m‖² - 2 y·m`` finds the mean. The distance is then computed from ``y - m``: if ‖y‖² and ‖m‖² are much larger than
    the distance, their sum in float32 has lost it.
    """

    normalize: bool  # divide features by their length first
    origin: Float64Array  # [D], a float32 number each, so that no graph rounds it
    whitening: Float64Array | None  # [D, r]; none is the identity
    points: Float64Array  # [K, r], class means seen from the origin, whitened
    squares: Float64Array  # [K], ‖m‖²

    @classmethod
    def of(cls, means: Float64Array, whitening: Float64Array | None = None, normalize: bool = True) -> Nearest:
        """From class means ``[K, D]``."""
        origin = means.mean(axis=0).astype(np.float32).astype(np.float64)
        points = means - origin if whitening is None else (means - origin) @ whitening
        return cls(normalize, origin, whitening, points, (points**2).sum(axis=1))


class Portable(NamedTuple):
    """Inputs and parameters of an exported scorer."""

    inputs: dict[str, int]  # number of columns of each array that is read: logits, features
    nearest: Nearest | None = None
    channels: Channels | None = None  # None for typicality, whose score is minus the distance
    squared: float = 0.0  # weight of the squared distance to the nearest class mean; 0 if features are not read
    columns: IntArray | tuple[int, ...] = ()  # the logit column of each point, for typicality
    limits: Float64Array | None = None  # accept if the score reaches it: [], or [N] per winning task

    @property
    def answer(self) -> str:
        """The name of the second output: the winning task, or the class whose mean is nearest."""
        return "task" if self.channels else "class"

    @property
    def outputs(self) -> list[str]:
        """The names of all outputs."""
        return ["score", self.answer, *(["accept"] if self.limits is not None else [])]


def portable(scorer: Any, alpha: float | None = None, threshold: float | None = None) -> Portable:
    """The parameters of a fitted :class:`~tood.TOOD`, ``typicality`` or ``tood_joint``, and of its decision.

    Parameters
    ----------
    scorer:
        Any of these, or a :class:`~tood.decision.Conformal` around one.
    alpha:
        Decide as ``Conformal.decide(…, alpha)`` does.
    threshold:
        Accept scores that reach this number, in place of ``alpha``.
    """
    if alpha is not None and threshold is not None:
        raise ToodError("alpha and threshold: expected one of them, found both")
    limits = None if threshold is None else np.array(float(threshold))
    if alpha is not None:
        if not isinstance(scorer, Conformal):
            raise ToodError(f"alpha: needs a fitted Conformal, found {type(scorer).__name__}; or give a threshold")
        limits = scorer.thresholds(alpha)
    return _parameters(scorer.cal if isinstance(scorer, Conformal) else scorer)._replace(limits=limits)


def _parameters(scorer: Any) -> Portable:
    """The parameters of the score, without a decision."""
    if isinstance(scorer, TOOD):
        channels = scorer._fitted()
        return Portable({"logits": channels.partition.columns}, channels=channels)
    if not isinstance(scorer, (Typicality, TOODJoint)):
        name = getattr(scorer, "name", type(scorer).__name__)
        raise ToodError(f"cal: expected a fitted TOOD, or the detector typicality or tood_joint, found {name}")
    scorer._check()
    scorer._check_fitted()
    prepared = scorer._ready(np.dtype(np.float64))
    columns, dimensions = scorer.shape_
    if isinstance(scorer, Typicality):
        nearest = Nearest.of(scorer.means_, prepared.whitening, bool(scorer.normalize))
        return Portable({"features": dimensions}, nearest, columns=scorer.classes_)
    if prepared.means is None:
        return Portable({"logits": columns}, channels=prepared.channels)
    # Of unit vectors: cos = 1 - d² / 2.
    channels = prepared.channels._replace(offset=prepared.channels.offset + prepared.cosine)
    inputs = {"logits": columns, "features": dimensions}
    return Portable(inputs, Nearest.of(prepared.means), channels, -prepared.cosine / 2)

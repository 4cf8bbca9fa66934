"""The rules that make a score of statistics: one function per variant.

Each rule has a number, raised when it computes something else. Files keep it and the compiled score, so a new number
never changes a file.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np

from tood.arrays import Float64Array
from tood.calibration.channels import Channels
from tood.calibration.statistics import Statistics, least_spread, trust
from tood.errors import ToodError
from tood.partition import Partition

__all__ = ["DEFAULT", "RULES", "Reference", "Variant", "compiled"]

Variant: TypeAlias = Literal["background", "mean_shift", "robust_anchor", "temperature", "none"]
Reference: TypeAlias = Literal["latest", "oldest", "widest", "mean"]
DEFAULT: Variant = "background"
SHARE = 0.5  # weight of the channels beside the energy, if all are trusted; chosen in docs/results/regimes.md


class Rule(NamedTuple):
    """How a variant is made of statistics: fields of :class:`Channels`."""

    number: int
    fields: Callable[[Statistics], dict[str, Any]]


def compiled(
    partition: Partition, statistics: Statistics, variant: Variant, margin: float, reference: Reference
) -> Channels:
    """The compiled score of a variant. The paper's are in the units of the reference (Eqs. mean_shift, robust)."""
    try:
        fields = RULES[variant].fields(statistics)
    except KeyError as missing:
        raise ToodError(f"variant: {variant!r} needs {missing}, which these statistics lack; fit on samples") from None
    if variant in ("mean_shift", "robust_anchor"):
        widest = int(statistics.get("mad", statistics["std"]).argmax())
        chosen: dict[str, Any] = {"latest": -1, "oldest": 0, "widest": widest, "mean": slice(None)}
        for name, source in (("gain", "scale"), ("offset", "location")):
            fields[name] = float(np.mean(fields[source][chosen[reference]]))
    return Channels(partition, margin=margin, **fields)


def background(statistics: Statistics) -> dict[str, Any]:
    """The default.

    1. The channel of each task is re-centred and re-scaled by how *other* tasks' calibration samples score in it (mean
       r, deviation q), as far as it is trusted: ``w = d² / (d² + ¼)`` of the way, where d says how many deviations its
       own samples lie above the others (:func:`tood.calibration.statistics.trust`). A dead channel is not moved.
    2. The largest channel, plus the margin times its lead over the second, is the vote of the channels.
    3. The score is the energy plus ½ × mean trust × that vote, in units in which each sample's own channel varies as
       much as before. If nothing is trusted, or with one task, it is the energy itself.
    """
    rest, weight = statistics["rest_mean"], trust(statistics)
    spread = np.log(np.maximum(statistics["rest_std"], least_spread(rest)))
    weights = weight if weight.any() else np.ones_like(weight)
    centre, common = (np.average(values, weights=weights) for values in (rest, spread))
    scale = np.exp(weight * (spread - common))
    location = rest - (rest + weight * (centre - rest)) * scale  # r moves weight of the way to the common centre
    count, mean, std = (statistics[name] for name in ("count", "mean", "std"))
    level, unit = _pooled(count, (mean - location) / scale, std / scale)
    gain = SHARE * float(weight.mean()) * _pooled(count, mean, std)[1] / unit
    return {"location": location, "scale": scale, "gain": gain, "offset": -gain * level, "energy": 1.0}


def _pooled(count: Float64Array, mean: Float64Array, std: Float64Array) -> tuple[float, float]:
    """Mean and deviation of all samples, from those of each task."""
    level = float(np.average(mean, weights=count))
    return level, float(np.sqrt(np.average(std**2 + (mean - level) ** 2, weights=count)))


RULES = {
    "background": Rule(1, background),
    "mean_shift": Rule(1, lambda s: {"location": s["mean"], "scale": np.ones_like(s["mean"])}),
    "robust_anchor": Rule(1, lambda s: {"location": s["median"], "scale": s["mad"]}),
    "temperature": Rule(1, lambda s: {"location": np.zeros_like(s["std"]), "scale": s["std"]}),
    "none": Rule(1, lambda s: {"location": np.zeros_like(s["mean"]), "scale": np.ones_like(s["mean"])}),
}

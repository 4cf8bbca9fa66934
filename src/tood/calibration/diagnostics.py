"""Per-task diagnostics of a calibration set: does each channel distinguish its own task from the others?

Channel t is the energy of task t's columns. In it, the calibration samples of task t ("own") should lie above those of
all other tasks ("rest"). The rest is also the best model of unknown inputs that a calibration set contains.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import NormalDist
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from tood.arrays import Float64Array

__all__ = ["ChannelDiagnostics", "DeadChannelWarning", "diagnose", "separation", "trust"]

Z95 = 1.959963984540054  # the normal quantile of a two-sided 95 % interval
HALF = 0.25  # squared separation at which a channel is half trusted; chosen in docs/results/regimes.md


class DeadChannelWarning(UserWarning):
    """A variant of the paper moves a channel that does not distinguish its own task from the others."""


class ChannelDiagnostics(NamedTuple):
    """Diagnostics of the channel of one task, from the calibration set."""

    task: int
    samples: int  # calibration samples of the task
    auroc: float  # own samples against the rest, by this channel's energy; NaN with one task
    low: float  # 95 % interval of that AUROC
    high: float
    gap: float  # mean own energy of the latest task minus that of this task
    alive: bool  # the AUROC is above 0.5 by the rank-sum test, one-sided at 2.5 %; True with one task
    trust: float  # 0 to 1: how far the default moves the channel


def diagnose(statistics: Mapping[str, npt.NDArray[Any]]) -> list[ChannelDiagnostics]:
    """Diagnostics of each channel from ``TOOD.statistics_``.

    Merged statistics have no ``rest_auroc``. It is then computed as that between two normal distributions,
    ``Φ((m - m') / √(v + v'))``. Without statistics of the rest the AUROC is NaN.
    """
    count, mean = statistics["count"], statistics["mean"]
    unknown = np.full(len(mean), np.nan)
    if len(mean) == 1 or "rest_mean" not in statistics:
        auroc = low = high = shares = unknown
        live = np.full(len(mean), len(mean) == 1)
    else:
        auroc = statistics["rest_auroc"] if "rest_auroc" in statistics else normal_auroc(statistics)
        live = alive(auroc, count)
        low, high = auroc_interval(auroc, count, count.sum() - count)
        shares = trust(statistics)
    columns = (count.astype(np.int64), auroc, low, high, mean[-1] - mean, live, shares)
    return [ChannelDiagnostics(t, *(column[t].item() for column in columns)) for t in range(len(mean))]


def normal_auroc(statistics: Mapping[str, npt.NDArray[Any]]) -> Float64Array:
    """``[N]``: AUROC of own samples against the rest, if both were normally distributed."""
    return np.array([NormalDist().cdf(d / np.sqrt(2)) for d in separation(statistics)])


def alive(auroc: Float64Array, count: Float64Array) -> npt.NDArray[np.bool_]:
    """``[N]``: whether an AUROC is above 0.5 by the rank-sum test (Mann and Whitney), one-sided at 2.5 %.

    ``count`` are the samples of each task; the rest is all others.
    """
    rest = count.sum() - count
    return auroc > 0.5 + Z95 * np.sqrt((count + rest + 1) / (12 * count * rest))


def describe_dead(diagnostics: Sequence[ChannelDiagnostics], shown: int = 5) -> str:
    """The channels that are not alive, for a message; empty if there is none."""
    dead = [d for d in diagnostics if not d.alive]
    named = [
        f"task {d.task} (AUROC {d.auroc:.2f}, interval {d.low:.2f} to {d.high:.2f}"
        f"{': too few samples to be sure' if d.auroc > 0.5 else ''})"
        for d in dead[:shown]
    ]
    return ", ".join([*named, *[f"{len(dead) - shown} more"] * (len(dead) > shown)])


def separation(statistics: Mapping[str, npt.NDArray[Any]]) -> Float64Array:
    """``[N]``: d′ of each channel, own mean minus the others' in units of the root mean square of both deviations."""
    variance = (statistics["std"] ** 2 + statistics["rest_std"] ** 2) / 2  # never 0: std has a floor
    return (statistics["mean"] - statistics["rest_mean"]) / np.sqrt(variance)


def trust(statistics: Mapping[str, npt.NDArray[Any]]) -> Float64Array:
    """``[N]``: how far each channel is trusted, ``d² / (d² + ¼)``; 0 if own samples do not lie above the others.

    d is the separation of own samples from the others. Half a deviation is half trusted.
    """
    squared = np.maximum(separation(statistics), 0) ** 2
    return squared / (squared + HALF)


def rank_auroc(own: Float64Array, rest: Float64Array) -> float:
    """AUROC of own energies against those of the rest, which are sorted; by ranks, ties counted half."""
    own = np.sort(own)  # ordered numbers are found several times faster
    below = np.searchsorted(rest, own, "left") + np.searchsorted(rest, own, "right")
    return float(below.sum() / (2 * len(own) * len(rest)))


def auroc_interval(auroc: Float64Array, own: Float64Array, rest: Float64Array) -> tuple[Float64Array, Float64Array]:
    """The 95 % interval of an AUROC of ``own`` against ``rest`` samples.

    The values θ with ``|auroc - θ| ≤ z se(θ)``, where se is Hanley and McNeil's standard error at θ (Newcombe,
    Statistics in Medicine 2006, method 5). It stays within 0 and 1, also at an AUROC of 0 or 1.
    """
    half = (own + rest) / 2 - 1

    def within(theta: Float64Array) -> npt.NDArray[np.bool_]:
        spread = 1 + half * (1 - theta) / (2 - theta) + half * theta / (1 + theta)
        return (auroc - theta) ** 2 <= Z95**2 * theta * (1 - theta) * spread / (own * rest)

    def bound(outside: float) -> Float64Array:
        inner, outer = np.array(auroc, dtype=np.float64), np.full(len(auroc), outside)
        for _ in range(50):  # bisection
            middle = (inner + outer) / 2
            inside = within(middle)
            inner, outer = np.where(inside, middle, inner), np.where(inside, outer, middle)
        return outer

    return bound(0.0), bound(1.0)

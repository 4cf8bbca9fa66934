"""Has the stream left what was calibrated? Incoming energies against calibrated ones, task by task."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from tood.arrays import Float64Array, FloatArray, IntArray, as_array, floats, indices
from tood.calibration import NORMAL_CONSISTENCY, TOOD, least_spread
from tood.decision.ranks import check_share, finite
from tood.errors import NotFittedError, ToodError

__all__ = ["Drift", "DriftMonitor", "kolmogorov_smirnov"]

FEWEST = 20  # samples of a task, below which it is not tested


def kolmogorov_smirnov(first: Any, second: Any) -> tuple[float, float]:
    """The largest distance between two empirical distribution functions, and its two-sided p-value.

    The p-value is the limiting one (Smirnov 1939): from 20 samples each it is practically never too small, and for few
    samples too large by up to 0.1, so that alarms are rather rarer than promised.

    Parameters
    ----------
    first, second:
        ``[n]`` and ``[m]``, numbers from two continuous distributions.

    Examples
    --------
    >>> distance, p_value = kolmogorov_smirnov(np.arange(50.0), np.arange(50.0) + 25)
    >>> distance, p_value < 1e-5
    (0.5, True)
    """
    a, b = np.sort(finite(first, "first")), np.sort(finite(second, "second"))
    both = np.concatenate([a, b])
    gaps = np.searchsorted(a, both, side="right") / len(a) - np.searchsorted(b, both, side="right") / len(b)
    distance = float(np.abs(gaps).max())
    x = distance * np.sqrt(len(a) * len(b) / (len(a) + len(b)))
    if x < 0.2:  # the series needs many terms there, and is 1 to twelve digits
        return distance, 1.0
    k = np.arange(1, 101)
    return distance, float(np.clip(2 * np.sum((-1.0) ** (k - 1) * np.exp(-2 * (k * x) ** 2)), 0.0, 1.0))


class Drift(NamedTuple):
    """What :meth:`DriftMonitor.report` says; arrays ``[N]``, NaN for tasks with too few samples to tell."""

    samples: IntArray  # incoming, in the window
    distance: Float64Array  # Kolmogorov-Smirnov: the most by which the share accepted at any threshold can be off
    p_value: Float64Array  # corrected for the number of tasks (Holm)
    shift: Float64Array  # of the median, in calibrated σ (1.4826 MAD)
    spread: Float64Array  # MAD over calibrated MAD
    drifted: npt.NDArray[np.bool_]

    @property
    def recalibrate(self) -> bool:
        """Has any task drifted?"""
        return bool(self.drifted.any())

    def __str__(self) -> str:
        lines = [
            f"task {t}: median moved by {self.shift[t]:+.2f} σ, spread × {self.spread[t]:.2f}, distance "
            f"{self.distance[t]:.2f} (p = {self.p_value[t]:.1g}, {self.samples[t]} samples): recalibrate it"
            for t in np.flatnonzero(self.drifted)
        ]
        return "\n".join(lines) or "no task has drifted"


class DriftMonitor:
    """Watches the energies of accepted inputs in their winning task's channel.

    Known and incoming samples pass the same gate (winning task, threshold), so that without drift they have the same
    distribution, and a report raises a false alarm with probability at most ``alpha``, all tasks together. Ask for a
    report once a window has been renewed; of r reports, ``r * alpha`` false ones are to be expected.

    Parameters
    ----------
    cal:
        A fitted :class:`~tood.TOOD`.
    window:
        How many of its latest samples a task is judged by.
    alpha:
        The probability of a false alarm in one report.
    tolerance:
        Drift is reported from this distance on: smaller ones, however significant, change the share accepted at any
        threshold by less.
    threshold:
        Only inputs whose score reaches it count, such as ``float(conformal.thresholds(0.05))``; none: all do.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> labels = np.repeat(np.arange(4), 200)
    >>> def draw(shift): return rng.normal(size=(800, 4)) + 6 * np.eye(4)[labels] + shift
    >>> cal = TOOD([[0, 1], [2, 3]]).fit(draw(0), labels)
    >>> monitor = DriftMonitor(cal).fit(draw(0))
    >>> monitor.update(draw(np.array([-2, -2, 0, 0]))).report().drifted.tolist()
    [True, False]
    """

    def __init__(
        self,
        cal: TOOD,
        window: int = 500,
        alpha: float = 0.01,
        tolerance: float = 0.1,
        threshold: float | None = None,
    ) -> None:
        self.cal = cal
        self.window = window
        self.alpha = alpha
        self.tolerance = tolerance
        self.threshold = threshold

    def fit(self, logits: Any) -> DriftMonitor:
        """Remember the energies of in-distribution samples ``[n, C]``, at best held-out ones; no labels are needed."""
        check_share("alpha", self.alpha)
        if self.window < FEWEST:
            raise ToodError(f"window: expected {FEWEST} samples or more, found {self.window}")
        self._known = self._energies(logits)
        if sum(map(len, self._known)) == 0:
            raise ToodError("logits: expected samples that reach the threshold, found none")
        self._incoming = [np.empty(0) for _ in self._known]
        return self

    def update(self, logits: Any) -> DriftMonitor:
        """Take in inputs ``[n, C]`` as they come."""
        self._fitted()
        for t, new in enumerate(self._energies(logits)):
            self._incoming[t] = np.concatenate([self._incoming[t], new])[-self.window :]
        return self

    def report(self) -> Drift:
        """Which tasks' energies have left their calibrated distribution, and how far."""
        self._fitted()
        rows = [_compare(known, new) for known, new in zip(self._known, self._incoming, strict=True)]
        distance, p_value, shift, spread = np.array(rows).T
        p_value = _holm(p_value)
        with np.errstate(invalid="ignore"):
            drifted = (p_value <= self.alpha) & (distance >= self.tolerance)
        samples = np.array([len(new) for new in self._incoming], dtype=np.int64)
        return Drift(samples, distance, p_value, shift, spread, drifted)

    def _energies(self, logits: Any) -> list[Float64Array]:
        """By winning task, the energies in its channel of the inputs that reach the threshold."""
        logits = as_array(logits)
        energies = floats(self.cal.task_energies(logits), "logits", ndim=2).astype(np.float64)
        tasks = indices(self.cal.assign(logits), "tasks")
        own: FloatArray = energies[np.arange(len(tasks)), tasks]
        if self.threshold is not None:
            reached = floats(self.cal.score(logits), "scores", ndim=1) >= self.threshold
            own, tasks = own[reached], tasks[reached]
        return [own[tasks == t] for t in range(energies.shape[1])]

    def _fitted(self) -> None:
        if not hasattr(self, "_known"):
            raise NotFittedError("this DriftMonitor is not fitted yet: call fit(logits) first")


def _compare(known: Float64Array, new: Float64Array) -> tuple[float, float, float, float]:
    """Distance, p-value, shift and spread; NaN where there are too few."""
    if min(len(known), len(new)) < FEWEST:
        return np.nan, np.nan, np.nan, np.nan
    middle, mad = _median_and_mad(known)
    here, its = _median_and_mad(new)
    mad = max(mad, float(least_spread(np.array(middle))))
    return *kolmogorov_smirnov(known, new), (here - middle) / (NORMAL_CONSISTENCY * mad), its / mad


def _median_and_mad(values: Float64Array) -> tuple[float, float]:
    middle = float(np.median(values))
    return middle, float(np.median(np.abs(values - middle)))


def _holm(p_values: Float64Array) -> Float64Array:
    """Holm's correction over the p-values that are not NaN: any false rejection at all has probability alpha."""
    out = p_values.copy()
    tested = np.flatnonzero(~np.isnan(p_values))
    order = tested[np.argsort(p_values[tested])]
    factors = np.arange(len(order), 0, -1)
    out[order] = np.minimum(1.0, np.maximum.accumulate(factors * p_values[order]))
    return out

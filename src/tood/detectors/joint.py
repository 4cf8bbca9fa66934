"""TOOD and typicality as one score: logits and features, each standardised, features weighted by their evidence."""

from __future__ import annotations

from collections.abc import Callable
from statistics import NormalDist
from typing import Any, ClassVar, Literal, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from tood.arrays import Float64Array, FloatArray, IntArray
from tood.calibration import TOOD, Channels, Reference, Variant
from tood.detectors.base import Grid
from tood.detectors.calibrated import STATISTICS, _Calibrated
from tood.detectors.distance import Means
from tood.detectors.outputs import FitData, Rows
from tood.detectors.prototype import TOOD_PAPER
from tood.detectors.registry import register
from tood.detectors.rowwise import own_columns
from tood.detectors.typicality import MAHALANOBIS_PP, Classes, Shrinkage, _Directions, held_out
from tood.energy import segment_logsumexp, with_lead
from tood.partition import Partition
from tood.statistics import Statistics, all_energies, divisor, least_spread, task_statistics

Weight: TypeAlias = "float | Literal['auto']"

# With a larger weight, runs whose features mislead lose too much (benchmarks/regimes.py).
LARGEST_WEIGHT = 0.5
# Samples that weight and units are estimated from, if there are more: in all, and per task at least.
SAMPLE, SAMPLE_PER_TASK = 4096, 100


class Mixture(NamedTuple):
    """``S = logits · L + squared · d² + offset``, where L is TOOD's score without units and d² the squared distance."""

    logits: float
    squared: float
    offset: float


def mixture(logits: FloatArray, squared: FloatArray, weight: float) -> Mixture:
    """Both scores standardised by their values on calibration samples, distances held out, and added."""
    means, deviations = (np.array([float(of(score)) for score in (logits, squared)]) for of in (np.mean, np.std))
    varies = deviations > least_spread(means)
    to_logits = 1 / deviations[0] if varies[0] else 1.0
    to_squared = -weight / deviations[1] if varies[1] else 0.0  # distances that do not vary say nothing
    return Mixture(to_logits, to_squared, -float(np.dot((to_logits, to_squared), means)))


def normalised_score(
    energies: FloatArray, statistics: Statistics, variant: Variant, margin: float, partition: Partition | None = None
) -> FloatArray:
    """TOOD's score of task energies ``[n, N]``, without the reference's units.

    ``partition``: N tasks of one column each; made if it is not given.
    """
    partition = partition or Partition.from_sizes([1] * energies.shape[1])
    cal = TOOD.from_statistics(partition, statistics, variant=variant)
    return with_lead(cal.channels().normalised(energies), margin)


def weight_of_features(
    energies: Float64Array, squared: Float64Array, tasks: IntArray, variant: Variant, margin: float
) -> float:
    """The weight of typicality, 0 to :data:`LARGEST_WEIGHT`, from pseudo-unknown inputs.

    Each task in turn is treated as unknown: its columns and class means are masked, and its calibration samples must
    score below those of the other tasks. ``Φ⁻¹(AUROC)`` of typicality over that of the logits, mean over tasks, is how
    much a unit of the one is worth in units of the other; it is cut to 0 and 1. One task alone shows nothing: 0.

    Parameters
    ----------
    energies, squared:
        ``[B, N]``, energy of each task and held-out squared distance to its nearest class.
    tasks:
        ``[B]``, the task of each sample.
    variant, margin:
        Of TOOD's score.
    """
    count = energies.shape[1]
    if count == 1:
        return 0.0
    statistics_without = _leaving_out(energies, tasks)
    energies, squared = np.asfortranarray(energies), np.asfortranarray(squared)  # channels are masked one at a time
    others = Partition.from_sizes([1] * (count - 1))
    by_logits, by_features = [], []
    for unknown in range(count):
        kept, known = np.arange(count) != unknown, tasks != unknown
        places = tasks[known] - (tasks[known] > unknown)
        statistics = {name: values[kept] for name, values in statistics_without(unknown).items()}
        scores = normalised_score(energies[:, kept], statistics, variant, margin, others)
        by_logits.append(_mean_auroc(scores[known], places, scores[~known]))
        nearest = -squared[:, kept].min(axis=1)
        by_features.append(_mean_auroc(nearest[known], places, nearest[~known]))
    logits, features = (_evidence(float(np.mean(figures))) for figures in (by_logits, by_features))
    return LARGEST_WEIGHT * (min(1.0, features / logits) if logits else bool(features))


def _leaving_out(energies: Float64Array, tasks: IntArray) -> Callable[[int], Statistics]:
    """The statistics of all channels without the samples of one task: its sums are subtracted from those of all."""
    count = energies.shape[1]
    own = energies[np.arange(len(tasks)), tasks]
    statistics = task_statistics(own, tasks, count)
    centred = energies - energies.mean(axis=0)
    strength = (own - statistics["mean"][tasks]) / divisor(statistics["std"], statistics["mean"])[tasks]
    order = np.argsort(tasks, kind="stable")
    starts = np.searchsorted(tasks[order], np.arange(count))
    terms = (np.ones_like(centred), centred, centred**2, centred * strength[:, None])
    sums = [np.add.reduceat(term[order], starts, axis=0) for term in terms]  # [N, N] each: by task of the sample
    others = [by_task.sum(axis=0) - np.diagonal(by_task) for by_task in sums]  # [N]: all samples but the channel's own

    def without(unknown: int) -> Statistics:
        if count == 2:
            zeros = np.zeros(count)
            return statistics | {"rest_mean": statistics["mean"], "rest_std": statistics["std"], "rest_slope": zeros}
        samples, total, squares, products = (o - by_task[unknown] for o, by_task in zip(others, sums, strict=True))
        samples[unknown] = 1  # not used
        mean = total / samples
        return statistics | {
            "rest_mean": energies.mean(axis=0) + mean,
            "rest_std": np.sqrt(np.maximum(squares / samples - mean**2, 0)),
            "rest_slope": products / samples,  # strength has mean 0 in each task
        }

    return without


def _mean_auroc(known: FloatArray, tasks: IntArray, unknown: FloatArray) -> float:
    """AUROC of each task's known samples against the unknown ones, mean over tasks."""
    ordered, order = np.sort(unknown), np.argsort(known)
    known, tasks = known[order], tasks[order]  # ordered numbers are found much faster
    below = np.searchsorted(ordered, known, "left") + np.searchsorted(ordered, known, "right")
    return float((np.bincount(tasks, below) / np.bincount(tasks)).mean() / (2 * len(ordered)))


def _evidence(auroc: float) -> float:
    """``Φ⁻¹(AUROC)``, 0 below chance."""
    return max(NormalDist().inv_cdf(min(max(auroc, 0.001), 0.999)), 0.0)


class _Prepared(NamedTuple):
    partition: Partition
    channels: Channels
    means: Means | None  # none without features


@register
class TOODJoint(_Directions, _Calibrated):
    """TOOD's score plus a weighted typicality: logits and features, each in units of its calibration spread.

    ``S(x) = (L(x) - mean) / std - w (d²(x) - mean) / std`` with L the score of :class:`tood.TOOD` and d the distance of
    :class:`~tood.detectors.typicality.Typicality`; means and deviations are those of the calibration samples, whose
    distances are held out in closed form. The weight is 0 if features do not help; the score then ranks as TOOD does.
    Without features at ``fit`` it is TOOD, and says so. With more than 4,096 calibration samples, weight, means and
    deviations are estimated from about 4,096 of them, always the same ones; everything else from all.

    Parameters
    ----------
    margin, variant:
        As for :class:`tood.TOOD`.
    weight:
        w ≥ 0; ``"auto"`` compares features with logits on the calibration set (:func:`weight_of_features`), at most
        0.5.
    normalize, shrinkage:
        As for :class:`~tood.detectors.typicality.Typicality`.
    """

    name = "tood_joint"
    title = "TOOD with features"
    version = 9
    needs = frozenset({"logits", "labels"})
    optional = frozenset({"features"})
    fits_on = "calibration"
    citation = f"{TOOD_PAPER}; {MAHALANOBIS_PP}; how they are combined: this library"
    grid: ClassVar[Grid] = {"margin": (0.0, 0.5), "weight": ("auto", 0.5, 1.0)}
    refit = frozenset({"normalize", "shrinkage", "margin", "variant", "weight"})
    passes = 3
    reference: Reference = "latest"

    mixture_: Float64Array  # [3], as Mixture
    feature_weight_: float

    def __init__(
        self,
        margin: float = 0.5,
        variant: Variant = "shrinkage",
        weight: Weight = "auto",
        normalize: bool = True,
        shrinkage: Shrinkage = "oas",
    ) -> None:
        self.margin = margin
        self.variant = variant
        self.weight = weight
        self.normalize = normalize
        self.shrinkage = shrinkage

    def _check(self) -> None:
        _Directions._check(self)
        _Calibrated._check(self)
        if isinstance(self.weight, str):
            self._one_of("weight", ("auto",))
        else:
            self._number("weight", 0, 1e6)

    def _fit(self, data: FitData) -> None:
        _Calibrated._fit(self, data)
        moments = self._moments(data)
        if moments is None:
            self._warn("there are no features; this is TOOD, from logits alone")
            return
        partition, order = data.tasks(self.name), np.flatnonzero(moments.seen)
        self.means_, self.covariance_, self.degrees_ = classes = Classes.of(moments, order)
        whitening, share = classes.shrunk(self.shrinkage)
        points = (classes.means - moments.origin) @ whitening
        rows, task_of = _sample(data, partition), partition.column_tasks
        y = (self._directions(rows) - moments.origin) @ whitening
        squared = held_out(y, points, np.searchsorted(order, rows.classes), moments.counts[order], share)
        by_task = _nearest_by_task(squared, task_of[order], len(partition))
        self._mix(all_energies(rows.logits, partition), by_task, task_of[rows.classes])

    def _mix(self, energies: Float64Array, squared: Float64Array, tasks: IntArray) -> None:
        """Learn the weight and the units of both scores from calibration samples."""
        self.feature_weight_ = (
            weight_of_features(energies, squared, tasks, self.variant, self.margin)
            if isinstance(self.weight, str)
            else float(self.weight)
        )
        statistics = dict(zip(STATISTICS, self.statistics_, strict=True))
        logits = normalised_score(energies, statistics, self.variant, self.margin)
        self.mixture_ = np.array(mixture(logits, squared.min(axis=1), self.feature_weight_))

    def _prepare(self, dtype: np.dtype[Any]) -> Any:  # _Prepared
        calibrator = _Calibrated._prepare(self, dtype)
        means = Means.of(self.means_, self._classes().shrunk(self.shrinkage)[0]) if hasattr(self, "means_") else None
        return _Prepared(calibrator.partition_, calibrator.channels(), means)

    def _score(self, rows: Rows, prepared: Any) -> FloatArray:
        partition, channels, means = prepared
        energies = segment_logsumexp(rows.logits, partition).astype(np.float64)
        logits = with_lead(channels.normalised(energies.T), float(self.margin))
        if means is None:
            return logits
        weights = Mixture(*self.mixture_)
        own, other = means.squared(self._directions(rows))
        squared = np.maximum(own + other.min(axis=1), 0)
        result: FloatArray = weights.logits * logits + weights.squared * squared + weights.offset
        return result


def _sample(data: FitData, partition: Partition) -> Rows:
    """Calibration samples as one block: all, or about :data:`SAMPLE` if there are more."""
    blocks = list(data)
    labels = np.concatenate([rows.classes for rows in blocks])
    # The order of rows does not matter: they are ranked by the logit of their class, and the features break ties.
    own = np.concatenate([own_columns(rows.logits, rows.classes) for rows in blocks])
    tie = np.concatenate([np.einsum("nd->n", rows.features) for rows in blocks])
    chosen = spread(own, tie, partition.column_tasks[labels], SAMPLE)
    kept = np.split(chosen, np.cumsum([len(rows.logits) for rows in blocks])[:-1])
    logits = np.concatenate([rows.logits[keep] for rows, keep in zip(blocks, kept, strict=True)])
    features = np.concatenate([rows.features[keep] for rows, keep in zip(blocks, kept, strict=True)])
    return Rows(logits, features, labels[chosen], None)


def spread(values: FloatArray, ties: FloatArray, tasks: IntArray, most: int) -> npt.NDArray[np.bool_]:
    """``[B]``: which of B samples to keep, about ``most``: of each task its share, at even ranks of ``values``.

    Equal values are ranked by ``ties``.
    """
    if len(tasks) <= most:
        return np.ones(len(tasks), dtype=bool)
    chosen = np.zeros(len(tasks), dtype=bool)
    for t in np.unique(tasks):
        own = np.flatnonzero(tasks == t)
        size = min(len(own), max(len(own) * most // len(tasks), SAMPLE_PER_TASK))
        ranked = own[np.lexsort((ties[own], values[own]))]
        chosen[ranked[(2 * np.arange(size) + 1) * len(own) // (2 * size)]] = True
    return chosen


def _nearest_by_task(squared: Float64Array, tasks: IntArray, count: int) -> Float64Array:
    """``[B, N]``: held-out squared distance to the nearest class of each task.

    A class of one sample has no mean without it; such a distance is replaced by the largest known one.
    """
    nearest = np.stack([squared[:, tasks == t].min(axis=1) for t in range(count)], axis=1)
    known = np.isfinite(nearest)
    result: Float64Array = np.where(known, nearest, nearest[known].max() if known.any() else 0.0)
    return result

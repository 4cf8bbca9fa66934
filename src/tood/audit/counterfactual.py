"""What old tasks would score if one thing had not changed: their level, or how strongly they respond.

The *response* of a task is how far the logit of a class stands out on samples of that class from the same logit on
other ID samples, in units of the spread within both (d'). It reads ID samples alone, so nothing that OOD does along the
stream enters. Restoring a task at the last step lowers its channel for all other samples by what its own samples fell.

Every figure comes with its parts: how much it changes when each sample counts once more.
"""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

import numpy as np

from tood.arrays import Float64Array, FloatArray, IntArray

__all__ = ["Change", "Response", "fallen", "levels", "response", "restored", "share_left", "slopes"]


Parts: TypeAlias = tuple[tuple[IntArray, Float64Array], ...]  # places of samples, and their parts


class Change(NamedTuple):
    """A value, and how much it changes when each sample counts once more."""

    value: float
    parts: Parts


class Response(NamedTuple):
    """How far a task's columns stand out on samples of their own classes."""

    height: float  # mean over classes: on the class's own samples minus on others
    spread: float  # within own samples and within others, pooled
    places: IntArray  # [n], of the samples
    height_parts: Float64Array  # [n]
    spread_parts: Float64Array  # [n]

    @property
    def value(self) -> float:
        """The height in units of the spread."""
        return self.height / self.spread

    def parts(self, factor: float) -> Parts:
        """Parts of ``value``, times a factor."""
        return ((self.places, factor * (self.height_parts - self.value * self.spread_parts) / self.spread),)


def response(scores: FloatArray, classes: IntArray, places: IntArray) -> Response | None:
    """The response of one task.

    Parameters
    ----------
    scores:
        ``[n, K]``, one column per class of the task.
    classes:
        ``[n]``, the column of each sample's class; -1 for samples of other tasks.
    places:
        ``[n]``, places of the samples.

    None if no class has samples, or nothing to compare with.
    """
    own = classes[:, None] == np.arange(scores.shape[1])
    present = own.any(axis=0) & ~own.all(axis=0)
    if not present.any():
        return None
    x, own = np.asarray(scores, dtype=np.float64)[:, present], own[:, present]
    counts, others = own.sum(axis=0), (~own).sum(axis=0)
    inside, outside = np.where(own, x, 0).sum(axis=0) / counts, np.where(own, 0, x).sum(axis=0) / others
    rest = x - np.where(own, inside, outside)
    each = np.where(own, 1 / counts.sum(), 1 / others.sum()) / 2  # own samples and others weigh alike
    variance = max(float((each * rest**2).sum()), 1e-24)
    height_parts = (rest * np.where(own, 1 / counts, -1 / others)).mean(axis=1)
    spread_parts = (each * (rest**2 - variance)).sum(axis=1) / (2 * np.sqrt(variance))
    return Response(float(np.mean(inside - outside)), float(np.sqrt(variance)), places, height_parts, spread_parts)


def share_left(before: Response, now: Response) -> Change:
    """The share of a response that is left, between none and all."""
    first = max(before.value, 1e-9)
    share = now.value / first
    return Change(float(np.clip(share, 0, 1)), before.parts(-share / first) + now.parts(1 / first))


def fallen(before: Response, now: Response, features: Change) -> Change:
    """How far a task's logits fell on its own samples, relative to others, in units of the last step.

    ``features``: the share of their response that is left; what the logits fell with them does not count.
    """
    held = now.spread * before.value
    now_parts = before.value * features.value * now.spread_parts - now.height_parts
    parts = (*before.parts(now.spread * features.value), (now.places, now_parts))
    parts += tuple((places, held * part) for places, part in features.parts)
    return Change(held * features.value - now.height, parts)


def levels(known: Float64Array, tasks: IntArray) -> tuple[Float64Array, Float64Array, float]:
    """What to subtract from each channel so that all tasks have the same level.

    Means that differ by no more than their errors are no gap: they are shrunk to their common mean (James and Stein).

    Returns
    -------
    ``[tasks]`` shifts, ``[n]`` each sample's part in the shift of its task, and the mean error of a shift.
    """
    own = known[np.arange(len(known)), tasks]
    counts = np.bincount(tasks)
    means = np.bincount(tasks, own) / counts
    errors = np.sqrt(np.maximum(np.bincount(tasks, (own - means[tasks]) ** 2) / counts, 1e-24) / counts)
    noise, spread = float(np.mean(errors**2)), float(np.var(means, ddof=1))
    keep = max(0.0, 1 - noise / spread) if spread > 0 else 0.0
    return keep * (means - means.mean()), keep * (own - means[tasks]) / counts[tasks], float(errors.mean())


def restored(energies: Float64Array, fell: Float64Array, tasks: IntArray | None = None) -> Float64Array:
    """``[n, tasks]`` energies with every channel lowered by what its task fell, except on the task's own samples."""
    found = energies - fell
    if tasks is not None:
        found[np.arange(len(found)), tasks] += fell[tasks]
    return found


def slopes(
    known: Float64Array, tasks: IntArray, unknown: Float64Array, weights: Float64Array, width: float, own: bool
) -> Float64Array:
    """``[tasks]``: how the weighted sum of AUROCs changes when a channel is lowered.

    Each score is the largest channel; densities are counted within ``width`` of it. ``own``: whether a channel is
    lowered on the samples of its own task too.
    """
    share = (weights / np.bincount(tasks, minlength=len(weights)))[tasks]
    win, ood_win = known.argmax(axis=1), unknown.argmax(axis=1)
    best, ood_best = known.max(axis=1), unknown.max(axis=1)
    order = np.argsort(best)
    total = np.concatenate([[0.0], np.cumsum(share[order])])
    high, low = (total[np.searchsorted(best[order], ood_best + side)] for side in (width, -width))
    ordered = np.sort(ood_best)
    above, below = (np.searchsorted(ordered, best + side) / len(ordered) for side in (width, -width))
    counted = np.where((win == tasks) & (not own), 0.0, share * (above - below))
    size = len(weights)
    gained, lost = np.bincount(ood_win, (high - low) / len(ordered), size), np.bincount(win, counted, size)
    found: Float64Array = (gained - lost) / (2.0 * width)
    return found

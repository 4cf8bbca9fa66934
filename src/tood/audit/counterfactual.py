"""What old tasks would score if one thing had not changed: their level, or how strongly they respond.

The *response* of a task is how far the logit of a class stands out on samples of that class from the same logit on
other ID samples, in units of the spread within both (d'). It uses ID samples only, so nothing that OOD does along the
stream affects it. Restoring a task at the last step lowers its channel, on all other samples, by what the task fell.

Every number comes with its influences: how much it changes if each sample counts once more
(:class:`~tood.audit.bootstrap.Statistics`).
"""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

import numpy as np

from tood.arrays import Float64Array, FloatArray, IntArray

__all__ = ["Change", "Response", "fallen", "levels", "response", "restored", "share_left", "slopes"]


Influences: TypeAlias = tuple[tuple[IntArray, Float64Array], ...]  # indices of samples, and their influence


class Change(NamedTuple):
    """A value, and the influence of samples on it."""

    value: float
    influences: Influences


class Response(NamedTuple):
    """How far a task's columns stand out on samples of their own classes."""

    height: float  # mean over classes: on the class's own samples minus on others
    spread: float  # within own samples and within others, pooled
    indices: IntArray  # [n], of the samples
    height_influence: Float64Array  # [n]
    spread_influence: Float64Array  # [n]

    @property
    def value(self) -> float:
        """The height in units of the spread."""
        return self.height / self.spread

    def influences(self, factor: float) -> Influences:
        """Influence of the samples on ``factor`` times the value."""
        return ((self.indices, factor * (self.height_influence - self.value * self.spread_influence) / self.spread),)


def response(scores: FloatArray, classes: IntArray, indices: IntArray) -> Response | None:
    """The response of one task; None if no class has both samples of its own and others to compare with.

    Parameters
    ----------
    scores:
        ``[n, K]``, one column per class of the task.
    classes:
        ``[n]``, the column of each sample's class; -1 for samples of other tasks.
    indices:
        ``[n]``, indices of the samples.
    """
    own = classes[:, None] == np.arange(scores.shape[1])
    present = own.any(axis=0) & ~own.all(axis=0)
    if not present.any():
        return None
    x, own = np.asarray(scores, dtype=np.float64)[:, present], own[:, present]
    counts, other_counts = own.sum(axis=0), (~own).sum(axis=0)
    own_means = np.where(own, x, 0).sum(axis=0) / counts
    other_means = np.where(own, 0, x).sum(axis=0) / other_counts
    residuals = x - np.where(own, own_means, other_means)
    weights = np.where(own, 1 / counts.sum(), 1 / other_counts.sum()) / 2  # own samples and others weigh alike
    variance = max(float((weights * residuals**2).sum()), 1e-24)
    return Response(
        height=float(np.mean(own_means - other_means)),
        spread=float(np.sqrt(variance)),
        indices=indices,
        height_influence=(residuals * np.where(own, 1 / counts, -1 / other_counts)).mean(axis=1),
        spread_influence=(weights * (residuals**2 - variance)).sum(axis=1) / (2 * np.sqrt(variance)),
    )


def share_left(before: Response, now: Response) -> Change:
    """The share of a response that is left, between none and all."""
    first = max(before.value, 1e-9)
    share = now.value / first
    return Change(float(np.clip(share, 0, 1)), before.influences(-share / first) + now.influences(1 / first))


def fallen(before: Response, now: Response, features: Change) -> Change:
    """How far a task's logits fell on its own samples, relative to others, in units of the last step.

    ``features``: the share of the features' response that is left. What the logits fell because of it is not counted.
    """
    held = now.spread * before.value
    now_influence = before.value * features.value * now.spread_influence - now.height_influence
    influences = (*before.influences(now.spread * features.value), (now.indices, now_influence))
    influences += tuple((indices, held * influence) for indices, influence in features.influences)
    return Change(held * features.value - now.height, influences)


def levels(energies: Float64Array, tasks: IntArray) -> tuple[Float64Array, Float64Array, float]:
    """What to subtract from each channel so that all tasks have the same level.

    Means that differ by no more than their errors are no gap, so they are shrunk to their common mean (James and
    Stein).

    Parameters
    ----------
    energies, tasks:
        ``[n, tasks]`` task energies of ID samples, and ``[n]`` their tasks.

    Returns
    -------
    ``[tasks]`` shifts, ``[n]`` each sample's influence on the shift of its task, and the mean error of a shift.
    """
    own = energies[np.arange(len(energies)), tasks]
    counts = np.bincount(tasks)
    means = np.bincount(tasks, own) / counts
    errors = np.sqrt(np.maximum(np.bincount(tasks, (own - means[tasks]) ** 2) / counts, 1e-24) / counts)
    noise, spread = float(np.mean(errors**2)), float(np.var(means, ddof=1))
    keep = max(0.0, 1 - noise / spread) if spread > 0 else 0.0
    return keep * (means - means.mean()), keep * (own - means[tasks]) / counts[tasks], float(errors.mean())


def restored(energies: Float64Array, fell: Float64Array, tasks: IntArray | None = None) -> Float64Array:
    """``[n, tasks]`` energies with every channel lowered by what its task fell, except on the task's own samples.

    ``tasks``: the tasks of the samples; None for OOD samples.
    """
    lowered = energies - fell
    if tasks is not None:
        lowered[np.arange(len(lowered)), tasks] += fell[tasks]
    return lowered


def slopes(
    id_energies: Float64Array,
    tasks: IntArray,
    ood_energies: Float64Array,
    weights: Float64Array,
    width: float,
    own: bool,
) -> Float64Array:
    """``[tasks]``: how the weighted sum of the tasks' AUROCs changes as a channel is lowered.

    Scores are the largest channel. Densities are counted within ``width`` of each score. ``own``: whether a channel is
    lowered on the samples of its own task too.
    """
    share = (weights / np.bincount(tasks, minlength=len(weights)))[tasks]
    id_winner, ood_winner = id_energies.argmax(axis=1), ood_energies.argmax(axis=1)
    id_scores, ood_scores = id_energies.max(axis=1), ood_energies.max(axis=1)
    order = np.argsort(id_scores)
    cumulative = np.concatenate([[0.0], np.cumsum(share[order])])
    high, low = (cumulative[np.searchsorted(id_scores[order], ood_scores + side)] for side in (width, -width))
    ordered = np.sort(ood_scores)
    above, below = (np.searchsorted(ordered, id_scores + side) / len(ordered) for side in (width, -width))
    id_weights = np.where((id_winner == tasks) & (not own), 0.0, share * (above - below))
    gained = np.bincount(ood_winner, (high - low) / len(ordered), len(weights))
    lost = np.bincount(id_winner, id_weights, len(weights))
    slope: Float64Array = (gained - lost) / (2.0 * width)
    return slope

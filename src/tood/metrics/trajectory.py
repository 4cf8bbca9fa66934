"""Trajectory of a metric along a stream: averages, forgetting, groups of OOD sets, seeds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, TypeAlias, get_args

import numpy as np

from tood.arrays import Float64Array, as_array, floats
from tood.errors import ToodError, UnknownNameError

Definition: TypeAlias = Literal["at_learning", "peak"]


class Trajectory:
    """Values of one metric per step, per task seen and per OOD set.

    Parameters
    ----------
    values:
        ``[T, T]`` or ``[T, T, D]``, NumPy or torch: entry ``[t, i(, d)]`` is the metric of task i at step t (against
        OOD set d), NaN exactly where i > t. On a cube, sets are averaged, unweighted, before anything else.
    groups:
        Optional, of a cube: the group of each OOD set, such as ``["near", "far", "far"]``.

    Examples
    --------
    >>> nan = float("nan")
    >>> tr = Trajectory([[0.9, nan, nan], [0.8, 0.9, nan], [0.5, 0.7, 0.9]])
    >>> round(tr.average(), 4), tr.forgetting().round(4), round(tr.average_forgetting(), 4)
    (0.8167, array([0.4, 0.2]), 0.3)

    Near and far sets: ``balanced`` is the mean of the near mean and the far mean, whatever the number of sets in each.

    >>> tr = Trajectory([[[0.7, 0.8, 0.9]]], groups=["near", "far", "far"])
    >>> round(tr.average(), 4), round(tr.group("far").average(), 4), round(tr.balanced().average(), 4)
    (0.8, 0.85, 0.775)
    """

    def __init__(self, values: Any, groups: Sequence[str] | None = None) -> None:
        self.values: Float64Array = _checked_values(values, "values")
        self.groups: tuple[str, ...] | None = None if groups is None else tuple(groups)
        sets = self.values.shape[2] if self.values.ndim == 3 else 0
        if self.groups is not None and len(self.groups) != sets:
            raise ToodError(f"groups: expected one for each of {sets} OOD sets, found {len(self.groups)}")

    def mean(self) -> Float64Array:
        """``[T, T]``: the unweighted mean over OOD sets of each step and task, NaN where i > t."""
        return self.values.mean(axis=2) if self.values.ndim == 3 else self.values

    def by_step(self) -> Float64Array:
        """``[T]``: per step, the mean over the tasks seen."""
        return np.nanmean(self.mean(), axis=1)

    def average(self) -> float:
        """The mean over steps of the mean over tasks seen, all OOD sets alike (paper, Eq. avg_auroc).

        Tables show ``balanced().average()``, which weights near- and far-OOD sets equally.
        """
        return float(self.by_step().mean())

    def forgetting(self, definition: Definition = "at_learning") -> Float64Array:
        """``[T-1]``: the loss of each task but the last at the final step.

        If lower is better, as for an FPR, a loss is negative and ``"peak"`` has no meaning.

        Parameters
        ----------
        definition:
            ``"at_learning"``: D_i, the value at the task's own step minus the final one. The paper's text says so, and
            the authors' code computes it, although it calls it "peak".
            ``"peak"``: the largest value at any step from the task's own to the last but one, minus the final one (the
            form of Eq. acc_forgetting).
        """
        if definition not in get_args(Definition):
            raise UnknownNameError("definition", definition, get_args(Definition))
        means = self.mean()
        if len(means) == 1:
            return np.empty(0)
        before = means[:-1, :-1]
        best: Float64Array = np.diagonal(before) if definition == "at_learning" else np.nanmax(before, axis=0)
        return best - means[-1, :-1]

    def average_forgetting(self, definition: Definition = "at_learning") -> float:
        """The mean of :meth:`forgetting` (paper, Eq. avg_det); 0 with a single task, which cannot be forgotten."""
        forgetting = self.forgetting(definition)
        return float(forgetting.mean()) if len(forgetting) else 0.0

    def group(self, name: str) -> Trajectory:
        """Trajectory against the OOD sets of one group."""
        groups = self._groups()
        if name not in groups:
            raise UnknownNameError("group", name, set(groups))
        return Trajectory(self.values[:, :, np.array(groups) == name], [name] * groups.count(name))

    def balanced(self) -> Trajectory:
        """The ``[T, T]`` trajectory of the mean over groups of each group's mean: (near + far) / 2, as in tables."""
        return Trajectory(near_far_mean(self.values, self._groups()))

    def _groups(self) -> tuple[str, ...]:
        if self.groups is None:
            raise ToodError("groups: expected the group of each OOD set, found none; pass Trajectory(values, groups)")
        return self.groups

    def __len__(self) -> int:
        """The number of steps, T."""
        return len(self.values)


def near_far_mean(values: Any, groups: Sequence[str]) -> Float64Array:
    """Mean over groups of the mean over each group's OOD sets: (near + far) / 2, as in the paper's tables.

    Parameters
    ----------
    values:
        ``[..., D]``, one value per OOD set.
    groups:
        The group of each set, ``"near"`` or ``"far"``; with one group only, its mean.

    Examples
    --------
    >>> round(float(near_far_mean([0.7, 0.8, 0.9], ["near", "far", "far"])), 4)
    0.775
    """
    array, names = np.asarray(values, dtype=np.float64), np.asarray(groups)
    if array.shape[-1:] != names.shape or not len(names):
        raise ToodError(f"groups: expected one for each of the sets of {array.shape}, found {len(names)}")
    return np.mean([array[..., names == name].mean(axis=-1) for name in dict.fromkeys(groups)], axis=0)


def accuracy_forgetting(accuracy: Any) -> Float64Array:
    """F_i, ``[T-1]``: the best accuracy of each task before the last step minus its final one (Eq. acc_forgetting).

    Their mean is the F̄ of this package: the paper's sum starts at the second task, which is taken as a slip.

    Parameters
    ----------
    accuracy:
        ``[T, T]``: entry ``[t, i]`` is the accuracy on task i at step t, NaN where i > t.

    Examples
    --------
    >>> nan = float("nan")
    >>> accuracy_forgetting([[0.75, nan, nan], [0.875, 1.0, nan], [0.5, 0.75, 1.0]])
    array([0.375, 0.25 ])
    """
    return _accuracies(accuracy).forgetting("peak")


def average_incremental_accuracy(accuracy: Any) -> float:
    """The mean over steps of the mean accuracy on the tasks seen (Rebuffi et al., iCaRL, CVPR 2017).

    Parameters
    ----------
    accuracy:
        ``[T, T]``: entry ``[t, i]`` is the accuracy on task i at step t, NaN where i > t.

    Examples
    --------
    >>> nan = float("nan")
    >>> average_incremental_accuracy([[1.0, nan], [0.5, 1.0]])
    0.875
    """
    return _accuracies(accuracy).average()


def mean_std(values: Sequence[Any]) -> tuple[Any, Any]:
    """Mean and standard deviation over seeds.

    Parameters
    ----------
    values:
        One result per seed: a number, an array, or a :class:`Trajectory` (its values are taken); all of one shape.

    Returns
    -------
    ``(mean, std)``, of the shape of one result. The deviation is the sample one (``ddof=1``), and 0 for a single seed.

    Examples
    --------
    >>> mean, std = mean_std([0.5, 0.75, 1.0])
    >>> float(mean), float(std)
    (0.75, 0.25)
    """
    values = [value.values if isinstance(value, Trajectory) else np.asarray(value) for value in values]
    if not values:
        raise ToodError("values: expected one per seed, found none")
    if len({value.shape for value in values}) > 1:
        raise ToodError(f"values: expected one shape for all seeds, found {[value.shape for value in values]}")
    stacked = np.stack(values).astype(np.float64)
    spread = stacked.std(axis=0, ddof=1) if len(values) > 1 else stacked[0] * 0
    return stacked.mean(axis=0), spread


def _checked_values(values: Any, name: str) -> Float64Array:
    """A read-only float64 copy, NaN exactly above the diagonal."""
    ndim = np.ndim(as_array(values, name))
    array = floats(values, name, ndim).astype(np.float64)
    if ndim not in (2, 3) or array.shape[0] != array.shape[1] or array.size == 0:
        raise ToodError(f"{name}: expected [T, T] or [T, T, D], found shape {array.shape}")
    steps = np.arange(len(array))
    unseen = np.less.outer(steps, steps).reshape(len(array), len(array), *[1] * (ndim - 2))
    wrong = np.where(unseen, ~np.isnan(array), ~np.isfinite(array))
    if wrong.any():
        place = tuple(int(k) for k in np.argwhere(wrong)[0])
        expected = "NaN, as that task is not seen yet" if place[1] > place[0] else "a finite number"
        raise ToodError(f"{name}: expected {expected}, at step {place[0]}, task {place[1]}, found {array[place]}")
    array.flags.writeable = False
    return array


def _accuracies(accuracy: Any) -> Trajectory:
    values = _checked_values(accuracy, "accuracy")
    if values.ndim != 2:
        raise ToodError(f"accuracy: expected [T, T], found shape {values.shape}")
    return Trajectory(values)

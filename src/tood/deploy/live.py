"""Incremental calibration: samples and tasks can be added and removed; no raw data are kept."""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt

from tood.arrays import Float64Array, IntArray, as_array, floats, label_columns
from tood.calibration.checks import Seen, check_calibration, logit_range
from tood.calibration.rules import DEFAULT
from tood.calibration.statistics import all_energies
from tood.calibration.tood import TOOD, Reference, Variant
from tood.energy import check_columns
from tood.errors import ToodError
from tood.partition import Partition
from tood.storage.files import plain, read_tensors, write_tensors

__all__ = ["LiveTOOD"]

KIND = "tood-live"


class LiveTOOD:
    """Incremental calibrator: keeps counts, means and deviations of energies per pair of tasks, and no sample.

    Samples may come in any order, in batches and from several machines (:meth:`merge`); the result is that of one
    ``fit``, up to rounding. Medians cannot be kept so, hence there is no ``"robust_anchor"``. Energies belong to the
    network that gave them: after further training, :meth:`forget` the tasks whose logits moved
    (:class:`~tood.deploy.drift.DriftMonitor` says which).

    A channel has no energies of samples that came before its :meth:`add_task` or :meth:`forget`. After either,
    :meth:`partial_fit` new samples of that task and a few of the others.

    Parameters
    ----------
    tasks:
        The logit columns of each task, oldest first, or a :class:`~tood.Partition`.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> labels = rng.permutation(np.repeat(np.arange(4), 50))
    >>> logits = rng.normal(size=(200, 4)) + 6 * np.eye(4)[labels]
    >>> live = LiveTOOD([[0, 1], [2, 3]])
    >>> for start in range(0, 200, 25):
    ...     live = live.partial_fit(logits[start : start + 25], labels[start : start + 25])
    >>> once = TOOD([[0, 1], [2, 3]]).fit(logits, labels)
    >>> bool(np.allclose(live.calibrator().score(logits), once.score(logits)))
    True
    """

    def __init__(self, tasks: Any) -> None:
        self.partition = Partition(tasks)
        # Count, mean and sum of squared deviations: of the samples of task s in the channel of task t, and of each
        # logit column.
        self.pairs: Float64Array = np.zeros((3, len(self.partition), len(self.partition)))
        self.columns: Float64Array = np.zeros((3, self.partition.columns))
        self.range: Float64Array = np.array([np.inf, -np.inf])  # lowest and highest logit seen

    @property
    def counts(self) -> IntArray:
        """``[N]``: the number of samples seen, per task."""
        return np.diag(self.pairs[0]).astype(np.int64)

    def partial_fit(self, logits: Any, labels: Any) -> LiveTOOD:
        """Add calibration samples of any tasks.

        Parameters
        ----------
        logits:
            ``[n, C]`` of in-distribution samples.
        labels:
            ``[n]``, the logit column of each sample's class.
        """
        logits = as_array(logits)
        check_columns(logits, self.partition)
        columns = label_columns(labels, self.partition.columns, len(logits))
        tasks = self.partition.column_tasks[columns]
        energies = all_energies(logits, self.partition)
        if len(columns):
            check_calibration(logits, columns, self.partition)
            self._widen(logit_range(logits))
            self.columns = joined_moments(self.columns, moments(floats(logits, "logits", ndim=2).astype(np.float64)))
        added = np.zeros_like(self.pairs)
        for t in np.unique(tasks):
            added[:, t] = moments(energies[tasks == t])
        self.pairs = joined_moments(self.pairs, added)
        return self

    def merge(self, other: LiveTOOD) -> LiveTOOD:
        """Add the samples of another LiveTOOD of the same tasks, for example of another machine."""
        if other.partition != self.partition:
            raise ToodError(f"other: expected {self.partition!r}, found {other.partition!r}")
        self.columns = joined_moments(self.columns, other.columns)
        self.pairs = joined_moments(self.pairs, other.pairs)
        self._widen(other.range)
        return self

    def add_task(self, columns: Iterable[int], keep: bool = False) -> LiveTOOD:
        """Add a task with these logit columns; it has no samples yet.

        All tasks are forgotten, since their energies belong to the network before; ``keep=True`` if only its head has
        grown.
        """
        for task in range(0 if keep else len(self.partition)):
            self.forget(task)
        self.partition = self.partition.grow(columns)
        self.pairs = np.pad(self.pairs, ((0, 0), (0, 1), (0, 1)))
        self.columns = np.zeros((3, self.partition.columns))
        return self

    def drop_task(self, task: int) -> IntArray:
        """Remove a task and its columns; the remaining columns are renumbered.

        Returns
        -------
        ``[C]``: the columns that remain, ascending; later logits must be ``logits[:, columns]``.
        """
        self._check_task(task)
        if len(self.partition) == 1:
            raise ToodError("task: expected two tasks or more, found only this one")
        self.partition, columns = self.partition.keep(t for t in range(len(self.partition)) if t != task)
        self.columns = self.columns[:, columns]
        self.pairs = np.delete(np.delete(self.pairs, task, axis=1), task, axis=2)
        return columns

    def forget(self, task: int) -> LiveTOOD:
        """Discard the energies of a task, and those in its channel, so that it can get new ones; its columns stay."""
        self._check_task(task)
        self.columns[:] = 0  # they may be of an earlier network
        self.pairs[:, task] = self.pairs[:, :, task] = 0
        return self

    def calibrator(self, variant: Variant = DEFAULT, margin: float = 0.5, reference: Reference = "latest") -> TOOD:
        """The calibrator that one ``fit`` on all samples seen would give; call again for another ``reference``.

        In the channel of a task that was added or forgotten, only samples seen since then count. If all of them are
        of that task, the default does not re-centre the channel, with a warning.
        """
        empty = np.flatnonzero(self.counts == 0)
        if len(empty):
            raise ToodError(f"no calibration sample yet for task {', '.join(map(str, empty))}")
        alone = np.flatnonzero(self.pairs[0].sum(axis=0) == self.pairs[0].diagonal())
        if variant == "background" and len(self.partition) > 1 and len(alone):
            warnings.warn(
                f"no sample of another task has been seen in the channel of task {', '.join(map(str, alone))}, so "
                f"{variant!r} does not re-centre it; partial_fit a few of them with the present head",
                UserWarning,
                stacklevel=2,
            )
        count, mean, squares = (plane.diagonal() for plane in self.pairs)
        own = {"count": count, "mean": mean, "std": np.sqrt(squares / count)}
        settings: dict[str, Any] = {"variant": variant, "margin": margin, "reference": reference}
        cal = TOOD.from_statistics(self.partition, own | self._rest(own), **settings)
        seen, means, sums = self.columns if self.columns[0].any() else np.empty((3, 0))
        cal.seen_ = Seen(self.range, means, np.sqrt(sums / seen))
        cal._warn_of_dead()
        return cal

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write everything to one safetensors file, atomically."""
        tensors = {name: getattr(self, name) for name in ("pairs", "columns", "range")}
        settings = {"tasks": [list(task) for task in self.partition]}
        write_tensors(path, KIND, tensors, {"settings": json.dumps(settings, default=plain)})

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> LiveTOOD:
        """Load a file that :meth:`save` wrote."""
        tensors, metadata = read_tensors(path, KIND)
        try:
            self = cls(**json.loads(metadata["settings"]))
            self.pairs = np.array(tensors["pairs"]).reshape(self.pairs.shape)
            self.columns = np.array(tensors["columns"]).reshape(self.columns.shape)
            self._widen(tensors["range"])
        except (LookupError, TypeError, ValueError, RecursionError) as error:
            raise ToodError(f"{os.fspath(path)}: not a usable {KIND} file: {error}") from error
        return self

    def _rest(self, statistics: dict[str, Float64Array]) -> dict[str, Float64Array]:
        """Statistics of each channel over other tasks' samples; over its own samples if there are no others."""
        count, mean, squares = self.pairs * ~np.eye(len(self.partition), dtype=bool)
        total = count.sum(axis=0)
        seen, samples = total > 0, np.maximum(total, 1)
        centre = (count * mean).sum(axis=0) / samples
        spread = np.sqrt((squares + count * (mean - centre) ** 2).sum(axis=0) / samples)
        return {
            "rest_mean": np.where(seen, centre, statistics["mean"]),
            "rest_std": np.where(seen, spread, statistics["std"]),
        }

    def _widen(self, seen: Float64Array) -> None:
        """Extend the range of logits seen."""
        self.range = np.array([min(self.range[0], seen[0]), max(self.range[1], seen[1])])

    def _check_task(self, task: int) -> None:
        if not 0 <= task < len(self.partition):
            raise ToodError(f"task: expected 0 to {len(self.partition) - 1}, found {task}")


def moments(values: Float64Array) -> npt.NDArray[np.float64]:
    """``[n, ...]`` to ``[3, ...]``: count, mean and sum of squared deviations from the mean."""
    mean = values.mean(axis=0)
    return np.stack([np.full_like(mean, len(values)), mean, len(values) * values.var(axis=0)])


def joined_moments(a: Float64Array, b: Float64Array) -> npt.NDArray[np.float64]:
    """The :func:`moments` of two sets of numbers as one (Chan, Golub and LeVeque)."""
    total, gap = a[0] + b[0], b[1] - a[1]
    share = b[0] / np.maximum(total, 1)
    return np.stack([total, a[1] + gap * share, a[2] + b[2] + gap**2 * a[0] * share])

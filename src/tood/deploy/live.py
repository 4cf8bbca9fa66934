"""Incremental calibration: samples and tasks can be added and removed; no raw data are kept."""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Iterable
from typing import Any

import numpy as np

from tood.arrays import Float64Array, IntArray, as_array, label_columns
from tood.calibration import NEEDED, TOOD, Reference, Variant
from tood.checks import check_calibration, logit_range
from tood.deploy.sketch import Sketch, joined_moments, moments
from tood.diagnostics import DeadChannelWarning
from tood.energy import check_columns
from tood.errors import ToodError
from tood.files import plain, read_tensors, write_tensors
from tood.partition import Partition
from tood.statistics import all_energies, divisor

__all__ = ["LiveTOOD"]

KIND = "tood-live"


class LiveTOOD:
    """Incremental calibrator: keeps one energy per sample, 8 bytes, in the channel of the sample's own task.

    A task's energies depend on its own columns alone, so tasks can come and go without changing the others. Statistics
    do not depend on the order of samples, on batches or on merges, to the last bit. ``"shrinkage"`` also needs energies
    in other tasks' channels: of these, mean, variance and covariance per pair of tasks are kept, which depend on the
    order by rounding. Energies belong to the network that gave them: after further training, :meth:`forget` the tasks
    whose logits moved (:class:`~tood.deploy.drift.DriftMonitor` says which).

    A channel has no energies of samples that came before its :meth:`add_task` or :meth:`forget`. After either,
    :meth:`partial_fit` new samples of that task and a few of the others.

    Parameters
    ----------
    tasks:
        The logit columns of each task, oldest first, or a :class:`~tood.Partition`.
    capacity:
        ``None`` keeps every energy. A number bounds the memory: see :class:`~tood.deploy.sketch.Sketch` for the error
        of the median and MAD that follows, which :attr:`rank_error` gives; count, mean and std stay exact.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> labels = rng.permutation(np.repeat(np.arange(4), 50))
    >>> logits = rng.normal(size=(200, 4)) + 6 * np.eye(4)[labels]
    >>> live = LiveTOOD([[0, 1], [2, 3]])
    >>> for start in range(0, 200, 25):
    ...     live = live.partial_fit(logits[start : start + 25], labels[start : start + 25])
    >>> once = TOOD([[0, 1], [2, 3]]).fit(logits, labels)
    >>> bool((live.calibrator().statistics_["mad"] == once.statistics_["mad"]).all())
    True
    """

    def __init__(self, tasks: Any, capacity: int | None = None) -> None:
        self.partition = Partition(tasks)
        self.capacity = capacity
        self.sketches = [Sketch(capacity) for _ in self.partition]
        # [5, N, N], of the samples of task s in the channel of task t: count, mean, sum of squared deviations, sum of
        # products of deviations with those in the channel of s, and mean in the channel of s
        self.pairs: Float64Array = np.zeros((5, len(self.partition), len(self.partition)))
        self.range: Float64Array = np.array([np.inf, -np.inf])  # lowest and highest logit seen

    @property
    def rank_error(self) -> float:
        """The largest rank error of any task; 0 means that every statistic is exact."""
        return max(sketch.rank_error for sketch in self.sketches)

    @property
    def counts(self) -> IntArray:
        """``[N]``: the number of samples seen, per task."""
        return np.array([sketch.count for sketch in self.sketches], dtype=np.int64)

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
        added = np.zeros_like(self.pairs)
        for t in np.unique(tasks):
            own = energies[tasks == t]
            self.sketches[t].add(own[:, t])
            added[:3, t] = moments(own)
            added[3, t] = (own - own.mean(axis=0)).T @ (own[:, t] - own[:, t].mean())
            added[4, t] = own[:, t].mean()
        self.pairs = _joined_pairs(self.pairs, added)
        return self

    def merge(self, other: LiveTOOD) -> LiveTOOD:
        """Add the samples of another LiveTOOD of the same tasks, for example of another machine."""
        if other.partition != self.partition or other.capacity != self.capacity:
            raise ToodError(
                f"other: expected {self.partition!r} and capacity {self.capacity}, "
                f"found {other.partition!r} and capacity {other.capacity}"
            )
        for sketch, added in zip(self.sketches, other.sketches, strict=True):
            sketch.merge(added)
        self.pairs = _joined_pairs(self.pairs, other.pairs)
        self._widen(other.range)
        return self

    def add_task(self, columns: Iterable[int]) -> LiveTOOD:
        """Add a task with these logit columns; it has no samples yet."""
        self.partition = self.partition.grow(columns)
        self.sketches.append(Sketch(self.capacity))
        self.pairs = np.pad(self.pairs, ((0, 0), (0, 1), (0, 1)))
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
        del self.sketches[task]
        self.pairs = np.delete(np.delete(self.pairs, task, axis=1), task, axis=2)
        return columns

    def forget(self, task: int) -> LiveTOOD:
        """Discard the energies of a task, and those in its channel, so that it can get new ones; its columns stay."""
        self._check_task(task)
        self.sketches[task] = Sketch(self.capacity)
        self.pairs[:, task] = self.pairs[:, :, task] = 0
        return self

    def calibrator(self, variant: Variant = "shrinkage", margin: float = 0.5, reference: Reference = "latest") -> TOOD:
        """The calibrator that one ``fit`` on all samples seen would give; call again for another ``reference``.

        In the channel of a task that was added or forgotten, only samples seen since then count. If all of them are
        of that task, ``"shrinkage"`` and ``"auto"`` do not re-centre the channel, with a warning; if it is the newest
        task, ``"auto"`` raises.
        """
        empty = np.flatnonzero(self.counts == 0)
        if len(empty):
            raise ToodError(f"no calibration sample yet for task {', '.join(map(str, empty))}")
        if variant in NEEDED:
            self._check_channels(variant)
        rows = [sketch.statistics() for sketch in self.sketches]
        statistics: dict[str, Any] = {name: [row[name] for row in rows] for name in rows[0]}
        statistics |= self._rest(statistics)
        if np.isfinite(self.range).all():  # not so in files of version 0.1
            statistics["range"] = self.range
        cal = TOOD.from_statistics(self.partition, statistics, variant=variant, margin=margin, reference=reference)
        if message := cal._moved_dead():
            warnings.warn(message, DeadChannelWarning, stacklevel=2)
        return cal

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write everything to one safetensors file, atomically."""
        tensors = {
            f"{t}.{name}": array for t, sketch in enumerate(self.sketches) for name, array in sketch.state().items()
        }
        tensors |= {"pairs": self.pairs, "range": self.range}
        settings = {"tasks": [list(task) for task in self.partition], "capacity": self.capacity}
        write_tensors(path, KIND, tensors, {"settings": json.dumps(settings, default=plain)})

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> LiveTOOD:
        """Load a file that :meth:`save` wrote."""
        tensors, metadata = read_tensors(path, KIND)
        try:
            self = cls(**json.loads(metadata["settings"]))
            names = ("values", "sizes", "moments")
            states = [{name: tensors[f"{t}.{name}"] for name in names} for t in range(len(self.partition))]
            self.sketches = [Sketch.from_state(self.capacity, state) for state in states]
            self.pairs = _all_planes(np.array(tensors["pairs"]).reshape(-1, *self.pairs.shape[1:]))
            self._widen(tensors.get("range", self.range))
        except (KeyError, TypeError, ValueError, RecursionError) as error:
            raise ToodError(f"{os.fspath(path)}: not a usable {KIND} file: {error}") from error
        return self

    def __repr__(self) -> str:
        return f"<LiveTOOD {self.partition!r}, capacity={self.capacity}, {self.counts.sum()} samples seen>"

    def _check_channels(self, variant: Variant) -> None:
        """Warn of channels in which no sample of another task was seen; raise if ``"auto"`` needs one of them."""
        newest = len(self.partition) - 1
        alone = np.flatnonzero(self.pairs[0].sum(axis=0) == self.pairs[0].diagonal())
        if newest == 0 or len(alone) == 0:
            return
        if variant == "auto" and alone[-1] == newest:
            raise ToodError(
                f"variant: 'auto' compares channels with that of task {newest}, in which no sample of another task has "
                "been seen; partial_fit a few of them with the present head"
            )
        warnings.warn(
            f"no sample of another task has been seen in the channel of task {', '.join(map(str, alone))}, so "
            f"{variant!r} does not re-centre it; partial_fit a few of them with the present head",
            UserWarning,
            stacklevel=3,
        )

    def _rest(self, statistics: dict[str, Any]) -> dict[str, Float64Array]:
        """Statistics of each channel over other tasks' samples; over its own samples if there are no others."""
        count, mean, squares, products, _ = self.pairs * ~np.eye(len(self.partition), dtype=bool)
        total = count.sum(axis=0)
        seen, samples = total > 0, np.maximum(total, 1)
        centre = (count * mean).sum(axis=0) / samples
        spread = np.sqrt((squares + count * (mean - centre) ** 2).sum(axis=0) / samples)
        deviation = divisor(np.array(statistics["std"]), np.array(statistics["mean"]))
        return {
            "rest_mean": np.where(seen, centre, statistics["mean"]),
            "rest_std": np.where(seen, spread, statistics["std"]),
            "rest_slope": (products / deviation[:, None]).sum(axis=0) / samples,
        }

    def _widen(self, seen: Float64Array) -> None:
        """Extend the range of logits seen."""
        self.range = np.array([min(self.range[0], seen[0]), max(self.range[1], seen[1])])

    def _check_task(self, task: int) -> None:
        if not 0 <= task < len(self.partition):
            raise ToodError(f"task: expected 0 to {len(self.partition) - 1}, found {task}")


def _joined_pairs(a: Float64Array, b: Float64Array) -> Float64Array:
    """``LiveTOOD.pairs`` of two sets of samples as one."""
    share, own_gap = b[0] / np.maximum(a[0] + b[0], 1), b[4] - a[4]
    products = a[3] + b[3] + (b[1] - a[1]) * own_gap * a[0] * share
    return np.concatenate([joined_moments(a[:3], b[:3]), products[None], (a[4] + own_gap * share)[None]])


def _all_planes(pairs: Float64Array) -> Float64Array:
    """``LiveTOOD.pairs`` of a file; older files lack the last plane, which differs only after ``forget``."""
    if len(pairs) == 5:
        return pairs
    own_means = np.where(pairs[0] > 0, np.diagonal(pairs[1])[:, None], 0.0)
    return np.concatenate([pairs, own_means[None]])

"""TOOD: per-task energies, re-centred with the statistics of a calibration set, scored by their maximum.

Every variant is ``E_norm = a · (E_t - location_t) / scale_t + b``, where ``a > 0`` and ``b`` come from the reference
task alone. That common map keeps the order of the channels, so the maximum and the margin are taken over
``u_t = (E_t - location_t) / scale_t`` and mapped once at the end: the ranking cannot depend on the reference.
"""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Iterator, Mapping
from typing import Any, Literal, NamedTuple, TypeAlias, cast, get_args

import numpy as np

from tood.arrays import ArrayT, Float64Array, FloatArray, as_array, back, indices, is_finite
from tood.checks import check_calibration, check_scale, logit_range
from tood.diagnostics import (
    ChannelDiagnostics,
    DeadChannelWarning,
    alive,
    background,
    describe_dead,
    describe_dead_winner,
    diagnose,
    normal_auroc,
    trust,
)
from tood.energy import (
    check_columns,
    energy_blocks,
    largest_with_lead,
    on_torch,
    score_dtype,
    task_energies,
    tensor_energies,
    tensor_with_lead,
)
from tood.errors import NotFittedError, ToodError, UnknownNameError
from tood.files import plain, read_tensors, write_tensors
from tood.hub import HubMixin
from tood.partition import Partition
from tood.statistics import OWN, REST, Statistics, all_energies, energy_statistics, least_spread, task_of_labels

__all__ = ["TOOD", "Channels", "Reference", "Variant"]

Variant: TypeAlias = Literal["shrinkage", "mean_shift", "robust_anchor", "temperature", "none", "auto"]
Reference: TypeAlias = Literal["latest", "oldest", "widest", "mean"]
KIND = "tood-calibrator"
SPREADS = ("mad", "std", "rest_std")
# A dead channel is loud if other tasks' samples lie in it this many of their deviations above own samples in trusted
# channels: about two thirds of them are above.
LOUD = 0.5
NEEDED = {"shrinkage": ("rest_mean", "rest_std", "rest_slope"), "auto": ("rest_mean", "rest_std")}  # beside OWN


class Channels(NamedTuple):
    """``E_norm = gain · u_t + offset`` with ``u_t = (E_t - location_t) / scale_t``, at most ``cap_t``."""

    location: FloatArray  # [N]
    scale: FloatArray  # [N]
    gain: float
    offset: float
    cap: FloatArray | None = None  # [N], in units of u; None if no channel is capped

    def normalised(self, energies: FloatArray) -> FloatArray:
        """``[n, N]``: u of each channel."""
        u: FloatArray = energies - self.location
        u /= self.scale
        return u if self.cap is None else np.minimum(u, self.cap, out=u)


class TOOD(HubMixin):
    """Task-aware OOD score calibration (paper, Algorithm 1): training-free, from logits alone.

    Parameters
    ----------
    tasks:
        The logit columns of each task, oldest first, or a :class:`~tood.Partition`.
    variant:
        ``"shrinkage"``, the default, moves a channel as far as it distinguishes its own task's calibration samples from
        other tasks' (:meth:`channels`). The paper's: ``"robust_anchor"`` (median and MAD, Eq. robust), ``"mean_shift"``
        (Eq. mean_shift), ``"temperature"`` (``E_t / std_t``, Eq. temp_scale), ``"none"`` (``E_t`` itself). ``"auto"``
        is an earlier form of ``"shrinkage"`` that shifts channels towards the latest task and keeps their spread.
    margin:
        λ ≥ 0, the weight of the gap between the two largest normalised energies (Eq. margin).
    reference:
        Whose statistics set the units of the score: the ``"latest"`` task, the ``"oldest"``, the ``"widest"`` (largest
        MAD) or the ``"mean"`` of all. It never changes the ranking.

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> labels = np.repeat(np.arange(4), 50)
    >>> logits = rng.normal(size=(200, 4)) + 8 * np.eye(4)[labels]
    >>> logits[:, :2] -= 5                                  # the old task's logits have shrunk
    >>> cal = TOOD([[0, 1], [2, 3]]).fit(logits, labels)
    >>> cal.score(logits).shape, cal.assign(logits[:1]).tolist()
    ((200,), [0])
    """

    def __init__(
        self,
        tasks: Any,
        variant: Variant = "shrinkage",
        margin: float = 0.5,
        reference: Reference = "latest",
    ) -> None:
        self.tasks = tasks
        self.variant = variant
        self.margin = margin
        self.reference = reference
        self._check_parameters()

    def fit(self, logits: Any, labels: Any) -> TOOD:
        """Read the statistics of each task's own energy from calibration samples.

        Parameters
        ----------
        logits:
            ``[B, C]`` of in-distribution samples, at least one (better a few dozen) per task.
        labels:
            ``[B]``, the logit column of each sample's class.
        """
        energies = self._fit(logits, labels)
        if message := self._moved_dead() or self._dead_winner(energies):
            warnings.warn(message, DeadChannelWarning, stacklevel=2)
        return self

    def _fit(self, logits: Any, labels: Any) -> Float64Array:
        """Learn the statistics, and return the energies ``[B, N]`` of the calibration samples."""
        self._check_parameters()
        logits = as_array(logits)
        partition = check_columns(logits, Partition(self.tasks))
        tasks = task_of_labels(labels, partition, rows=len(logits))
        energies = all_energies(logits, partition)
        check_calibration(logits, indices(labels, "labels"), partition, stacklevel=4)
        self.partition_ = partition
        self.range_ = logit_range(logits)  # a check of `score`: production logits far outside it get a warning
        self.statistics_ = energy_statistics(energies, tasks)
        self._floor_spread()
        return energies

    def _moved_dead(self) -> str:
        """A sentence if the variant re-centres dead channels; else empty."""
        if self.variant not in ("mean_shift", "robust_anchor") or not (dead := describe_dead(self.diagnostics_)):
            return ""
        return (
            f"dead channels: own calibration samples do not lie above other tasks' in {dead}; {self.variant} "
            "re-centres them all the same and may rank unknown inputs above known ones; use variant='shrinkage'"
        )

    def _dead_winner(self, energies: Float64Array) -> str:
        """A sentence if a dead channel wins for most calibration samples, from their energies ``[B, N]``; else empty.

        Not of the paper's variants: each is compared as it is.
        """
        if self.variant not in NEEDED:
            return ""
        return describe_dead_winner(self.diagnostics_, self.channels().normalised(energies).argmax(axis=1))

    @property
    def diagnostics_(self) -> list[ChannelDiagnostics]:
        """Per task: own-against-rest AUROC with its interval, gap, samples, whether the channel is alive, trust."""
        self._fitted()
        return diagnose(self.statistics_)

    @classmethod
    def from_statistics(cls, tasks: Any, statistics: Mapping[str, Any], **settings: Any) -> TOOD:
        """A fitted calibrator from statistics that were computed elsewhere: ``[N]`` each, as :attr:`statistics_`.

        Statistics of the rest (names that begin with ``rest``) may be left out; ``"shrinkage"`` and ``"auto"`` need
        them.
        """
        cal = cls(tasks, **settings)
        cal.partition_ = Partition(tasks)
        cal.statistics_ = {}
        if missing := [name for name in OWN if name not in statistics]:
            raise ToodError(f"statistics: expected {', '.join(OWN)}, found no {', '.join(missing)}")
        for name in (*OWN, *(name for name in REST if name in statistics)):
            values = np.array(statistics[name], dtype=np.float64)
            if values.shape != (len(cal.partition_),) or not np.isfinite(values).all():
                raise ToodError(f"statistics: {name}: expected one finite number per task, found {values}")
            least = 1.0 if name == "count" else 0.0 if name in SPREADS else -np.inf
            if values.min() < least:
                raise ToodError(f"statistics: {name}: expected numbers of {least:g} or more, found {values}")
            cal.statistics_[name] = values
        if "range" in statistics:  # files of version 0.1 have none
            cal.range_ = np.array(statistics["range"], dtype=np.float64)
            if cal.range_.shape != (2,):
                raise ToodError(f"statistics: range: expected the lowest and highest logit, found {cal.range_}")
        cal._floor_spread()
        return cal

    def score(self, logits: ArrayT) -> ArrayT:
        """``[n]``: the largest normalised energy plus λ times its lead over the second; higher = in-distribution."""
        return self._score(logits, assign=False)[0]

    def score_and_assign(self, logits: ArrayT) -> tuple[ArrayT, ArrayT]:
        """Both :meth:`score` and :meth:`assign` from one pass over the logits."""
        return self._score(logits, assign=True)

    def _score(self, logits: ArrayT, assign: bool) -> tuple[ArrayT, ArrayT]:
        logits, partition, channels = self._ready(logits)
        if hasattr(self, "range_"):
            check_scale(logits, self.range_, stacklevel=4)
        margin = float(self.margin) if len(partition) > 1 else 0.0
        if on_torch(logits):
            energies = tensor_energies(logits, partition)
            best, channel = tensor_with_lead(_normalised_tensor(energies, channels), margin)
            best = best * channels.gain + channels.offset
            if not bool(best.isfinite().all()):
                raise ToodError(
                    f"logits: the score of row {int(best.isfinite().int().argmin())} overflows {best.dtype}"
                )
            return cast(ArrayT, best), cast(ArrayT, channel)
        scores = np.empty(len(logits), dtype=score_dtype(logits))
        tasks = np.empty(len(logits) if assign else 0, dtype=np.int64)
        for rows, values in energy_blocks(logits, partition):
            values -= channels.location[:, None].astype(values.dtype)
            values /= channels.scale[:, None].astype(values.dtype)
            if channels.cap is not None:
                np.minimum(values, channels.cap[:, None].astype(values.dtype), out=values)
            top, winners = largest_with_lead(values, margin, assign)
            scores[rows] = top.astype(np.float64) * channels.gain + channels.offset
            if assign:
                tasks[rows] = winners
        if not is_finite(scores):
            raise ToodError(f"logits: the score of row {int(np.isfinite(scores).argmin())} overflows {scores.dtype}")
        return back(scores, like=logits), back(tasks, like=logits)

    def task_energies(self, logits: ArrayT) -> ArrayT:
        """``[n, N]``: E_t, one energy per task, not normalised."""
        return task_energies(logits, Partition(self.tasks))

    def normalized_energies(self, logits: ArrayT) -> ArrayT:
        """``[n, N]``: E_t after normalisation, in the units of the reference task."""
        logits, partition, channels = self._ready(logits)
        energies = task_energies(logits, partition)
        if isinstance(energies, np.ndarray):
            normalised = channels.normalised(energies) * channels.gain + channels.offset
            return cast(ArrayT, normalised.astype(energies.dtype))
        return cast(ArrayT, _normalised_tensor(energies, channels) * channels.gain + channels.offset)

    def assign(self, logits: ArrayT) -> ArrayT:
        """``[n]``: the task whose normalised energy is largest."""
        return self._score(logits, assign=True)[1]

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write settings, partition and statistics to one safetensors file, atomically."""
        partition = self._fitted()
        write_tensors(
            path,
            KIND,
            {
                **self.statistics_,
                **({"range": self.range_} if hasattr(self, "range_") else {}),
                "columns": np.concatenate([np.asarray(task, dtype=np.int64) for task in partition]),
                "sizes": np.array([len(task) for task in partition], dtype=np.int64),
            },
            {"settings": json.dumps({k: v for k, v in self.get_params().items() if k != "tasks"}, default=plain)},
        )

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> TOOD:
        """Load a file that :meth:`save` wrote."""
        tensors, metadata = read_tensors(path, KIND)
        try:
            columns, sizes = tensors["columns"], tensors["sizes"]
            if sizes.min() < 1 or sizes.sum() != len(columns):
                raise ToodError(f"sizes {sizes} do not divide {len(columns)} columns")
            parts = np.split(columns, np.cumsum(sizes)[:-1])
            return cls.from_statistics(Partition(parts), tensors, **json.loads(metadata["settings"]))
        except (KeyError, TypeError, ValueError, RecursionError) as error:
            raise ToodError(f"{os.fspath(path)}: not a usable calibrator: {error}") from error

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """The settings by name, as scikit-learn expects."""
        return {name: getattr(self, name) for name in ("tasks", "variant", "margin", "reference")}

    def set_params(self, **params: Any) -> TOOD:
        """Change settings; variant, margin and reference take effect at once, other tasks need a new ``fit``."""
        before = self.get_params()
        for name in params:
            if name not in before:
                raise UnknownNameError("setting", name, before)
        vars(self).update(params)
        try:
            self._check_parameters()
        except ToodError:
            vars(self).update(before)
            raise
        return self

    def __repr__(self) -> str:
        settings = (f"{name}={value!r}" for name, value in self.get_params().items() if name != "tasks")
        fitted = f", fitted to {self.statistics_['count'].sum():.0f} samples" if hasattr(self, "statistics_") else ""
        try:
            tasks = repr(Partition(self.tasks))
        except ToodError:  # changed since by hand
            tasks = f"tasks={self.tasks!r}"
        return f"<TOOD {tasks}, {', '.join(settings)}{fitted or ', not fitted'}>"

    def _check_parameters(self) -> None:
        if isinstance(self.tasks, Iterator):
            raise ToodError("tasks: expected lists of columns, found an iterator, which can be read only once")
        if not isinstance(self.variant, str) or self.variant not in get_args(Variant):
            raise UnknownNameError("variant", self.variant, get_args(Variant))
        if not isinstance(self.reference, str) or self.reference not in get_args(Reference):
            raise UnknownNameError("reference", self.reference, get_args(Reference))
        if not (isinstance(self.margin, (int, float, np.number)) and 0 <= self.margin < np.inf):
            raise ToodError(f"margin: expected a number, 0 or more, found {self.margin!r}")

    def _fitted(self) -> Partition:
        if not hasattr(self, "statistics_"):
            raise NotFittedError("this TOOD is not fitted yet: call fit(logits, labels) first")
        if Partition(self.tasks) != self.partition_:
            raise ToodError("tasks: changed since fit; call fit again")
        return self.partition_

    def _ready(self, logits: ArrayT) -> tuple[ArrayT, Partition, Channels]:
        partition = self._fitted()
        self._check_parameters()
        logits = as_array(logits)
        return logits, check_columns(logits, partition), self.channels()

    def channels(self) -> Channels:
        """Location and scale of each channel, and the reference's map (Eqs. mean_shift, robust, temp_scale).

        ``"shrinkage"`` asks channel t whether a sample belongs to task t. Own calibration samples have mean m and
        variance v there, other tasks' samples variance v', and an unknown input is expected at the background b
        (:func:`tood.diagnostics.background`). The decision falls at the middle ``c = (m + b) / 2``, and
        ``s = √((v + v') / 2)`` is the unit in which evidence counts; so channels are comparable as ``(E - c) / s``. How
        far that is trusted is ``w = d² / (d² + 16 / n)`` with ``d = max(m - b, 0) / s`` and n own samples, at most 64:
        near 1 in a live channel, 0 in a dead one, which keeps its raw energy, up to the cap below. In between, location
        and log-scale are interpolated: ``u = c + w (c̄ - c) + (E - c) (s̄ / s)^w``, where ``c̄`` and ``log s̄`` are means
        weighted by ``w``. A dead channel that would still win for most samples of other tasks is *loud*
        (:data:`LOUD`): it would hide what the others say. It is lowered by ``1 - w`` of the way to where other tasks'
        samples lie in trusted channels. An energy above ``m + √v`` counts as that much, in every channel: few own
        samples have more, so more is no further evidence for the task, while unknown inputs with large features have
        far more. With one task nothing is capped. If nothing is trusted the score is the largest capped task energy,
        plus its lead.

        ``"auto"``: ``u = E - w' (c - c_latest)`` with ``w' = d² / (d² + 2)``; there b is the mean of other
        tasks' samples.
        """
        self._fitted()
        statistics = self.statistics_
        missing = [name for name in NEEDED.get(self.variant, ()) if name not in statistics]
        if missing:
            raise ToodError(
                f"variant: {self.variant!r} needs {', '.join(missing)}, which these statistics lack; fit on samples"
            )
        if self.variant == "shrinkage":
            location, scale = shrunk_channels(statistics)
            cap = (statistics["mean"] + statistics["std"] - location) / scale if len(scale) > 1 else None
            return Channels(location, scale, self._of_reference(scale), self._of_reference(location), cap)
        if self.variant == "auto":
            location = _shrunk_middles(statistics)
            return Channels(location, np.ones_like(location), 1.0, self._of_reference(location))
        ones, zeros = np.ones_like(statistics["mean"]), np.zeros_like(statistics["mean"])
        if self.variant == "mean_shift":
            return Channels(statistics["mean"], ones, 1.0, self._of_reference(statistics["mean"]))
        if self.variant == "robust_anchor":
            median, mad = statistics["median"], statistics["mad"]
            return Channels(median, mad, self._of_reference(mad), self._of_reference(median))
        if self.variant == "temperature":
            return Channels(zeros, statistics["std"], 1.0, 0.0)
        return Channels(zeros, ones, 1.0, 0.0)

    def _of_reference(self, statistic: FloatArray) -> float:
        if self.reference == "mean":
            return float(statistic.mean())
        task = {"latest": -1, "oldest": 0, "widest": int(self.statistics_["mad"].argmax())}[self.reference]
        return float(statistic[task])

    def _floor_spread(self) -> None:
        """Floor zero spreads, so that no variant divides by zero, and warn."""
        floor = least_spread(self.statistics_["median"])
        flat = (self.statistics_["mad"] < floor) | (self.statistics_["std"] < floor)
        for name in ("mad", "std"):
            self.statistics_[name] = np.maximum(self.statistics_[name], floor)
        if flat.any():
            tasks = [str(task) for task in np.flatnonzero(flat)]
            more = f" and {len(tasks) - 5} more" if len(tasks) > 5 else ""
            warnings.warn(
                f"the calibration energies of task {', '.join(tasks[:5])}{more} have no spread (mad or std 0); it is "
                "floored: add calibration samples or use variant='mean_shift', which ignores the spread",
                UserWarning,
                stacklevel=4,
            )


def shrunk_channels(statistics: Statistics, loud: float = LOUD) -> tuple[FloatArray, FloatArray]:
    """``[N]`` each: location and scale of variant ``"shrinkage"``, as :meth:`TOOD.channels` explains."""
    trusted = trust(statistics)
    if not trusted.any():
        return np.zeros_like(trusted), np.ones_like(trusted)
    middle = (statistics["mean"] + background(statistics)) / 2
    log_spread = np.log((statistics["std"] ** 2 + statistics["rest_std"] ** 2) / 2) / 2  # finite: std has a floor
    common, common_log = (np.average(values, weights=trusted) for values in (middle, log_spread))
    scale: FloatArray = np.exp(trusted * (log_spread - common_log))
    target = middle + trusted * (common - middle)
    location = middle - target * scale
    own, rest = ((statistics[name] - location) / scale for name in ("mean", "rest_mean"))
    own_level, rest_level = (np.average(values, weights=trusted) for values in (own, rest))
    # The rank AUROC would be better, but merged statistics have none, and their score must be the same.
    is_dead = ~alive(normal_auroc(statistics), statistics["count"])
    is_loud = is_dead & (rest - loud * statistics["rest_std"] / scale > own_level)
    return location + np.where(is_loud, (1 - trusted) * (rest - rest_level) * scale, 0.0), scale


def _shrunk_middles(statistics: Statistics) -> FloatArray:
    """``[N]``: how far ``"auto"`` moves each channel."""
    gap = np.maximum(statistics["mean"] - statistics["rest_mean"], 0) ** 2
    spread = statistics["std"] ** 2 + statistics["rest_std"] ** 2  # never 0: std has a floor
    middle = (statistics["mean"] + statistics["rest_mean"]) / 2
    location: FloatArray = gap / (gap + spread) * (middle - middle[-1])
    return location


def _normalised_tensor(energies: Any, channels: Channels) -> Any:
    """:meth:`Channels.normalised` in torch."""
    u = (energies - _like(channels.location, energies)) / _like(channels.scale, energies)
    return u if channels.cap is None else u.minimum(_like(channels.cap, u))


def _like(values: FloatArray, tensor: Any) -> Any:
    """``values`` as a tensor of the precision and on the device of another."""
    import torch

    dtype = torch.float64 if tensor.dtype == torch.float64 else torch.float32
    return torch.as_tensor(values, dtype=dtype, device=tensor.device)

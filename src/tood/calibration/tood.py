"""TOOD: per-task energies, re-centred with the statistics of a calibration set, scored by their maximum.

A variant of the paper is ``E_norm = a · (E_t - location_t) / scale_t + b``, where ``a > 0`` and ``b`` come from the
reference task alone. That common map keeps the order of the channels, so the maximum and the margin are taken over
``u_t = (E_t - location_t) / scale_t`` and mapped once at the end: the ranking cannot depend on the reference.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from datetime import datetime, timezone
from typing import Any, get_args

import numpy as np

from tood.arrays import ArrayT, Float64Array, as_array, back, indices
from tood.calibration.channels import Channels
from tood.calibration.checks import Seen, check_calibration, check_scale
from tood.calibration.rules import DEFAULT, RULES, Reference, Variant, compiled
from tood.calibration.statistics import (
    OWN,
    REST,
    ROBUST,
    ChannelDiagnostics,
    Statistics,
    all_energies,
    diagnose,
    energy_statistics,
    least_spread,
    task_of_labels,
)
from tood.energy import check_columns, score_dtype, task_energies
from tood.errors import NotFittedError, ToodError, UnknownNameError, warn
from tood.partition import Partition
from tood.storage.files import plain, read_tensors, write_tensors

__all__ = ["TOOD", "Reference", "Variant"]

KIND = "tood-calibrator"
CANARIES = 4  # rows in a file whose scores are checked when it is loaded
MOVED = 1e-7  # scores of these rows may differ by rounding, relative to their size
LEAST = {"count": 1, "mad": 0, "std": 0, "rest_std": 0}


class TOOD:
    """Task-aware OOD score calibration (paper, Algorithm 1): training-free, from logits alone.

    Parameters
    ----------
    tasks:
        The logit columns of each task, oldest first, or a :class:`~tood.Partition`.
    variant:
        ``"background"``, the default, is ours: the energy, corrected by channels that are re-centred by other tasks'
        samples (:func:`tood.calibration.rules.background`). The paper's: ``"robust_anchor"`` (median and MAD, Eq.
        robust), ``"mean_shift"`` (Eq. mean_shift), ``"temperature"`` (``E_t / std_t``, Eq. temp_scale), ``"none"``
        (``E_t`` itself).
    margin:
        λ ≥ 0, the weight of the gap between the two largest normalised energies (Eq. margin).
    reference:
        Whose statistics set the units of the score: the ``"latest"`` task, the ``"oldest"``, the ``"widest"`` (largest
        MAD) or the ``"mean"`` of all. It never changes the ranking. The default has the units of the energy.

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
        self, tasks: Any, variant: Variant = DEFAULT, margin: float = 0.5, reference: Reference = "latest"
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
        self._fit(logits, labels)
        self._warn_of_dead()
        return self

    def _fit(self, logits: Any, labels: Any) -> None:
        """Learn the statistics and compile the score."""
        self._check_parameters()
        logits = as_array(logits)
        partition = check_columns(logits, Partition(self.tasks))
        tasks = task_of_labels(labels, partition, rows=len(logits))
        check_calibration(logits, indices(labels, "labels"), partition)
        self.partition_ = partition
        self.seen_ = Seen.of(logits)
        self.statistics_ = energy_statistics(all_energies(logits, partition), tasks)
        self._floor_spread()
        self._compile()

    def _compile(self) -> None:
        """Compile the variant to :attr:`channels_`; from here on it is only evaluated."""
        self.channels_ = compiled(self.partition_, self.statistics_, self.variant, float(self.margin), self.reference)
        self.metadata_: dict[str, str] = getattr(self, "metadata_", {})
        self.rule_ = {"name": self.variant, "number": RULES[self.variant].number}
        self.version_ = version()
        self.created_ = datetime.now(timezone.utc).isoformat(timespec="seconds")

    def _warn_of_dead(self) -> None:
        """Warn if the variant re-centres dead channels."""
        if self.variant not in ("mean_shift", "robust_anchor"):
            return
        if dead := [str(d.task) for d in self.diagnostics_ if not d.alive]:
            warn(
                f"dead channels: own calibration samples do not lie above other tasks' in task {', '.join(dead)}; "
                f"{self.variant} re-centres them all the same and may rank unknown inputs above known ones; use the "
                "default variant"
            )

    @property
    def diagnostics_(self) -> list[ChannelDiagnostics]:
        """Per task: own-against-rest AUROC with its interval, gap, samples, whether the channel is alive, trust."""
        self._fitted()
        return diagnose(self.statistics_)

    @classmethod
    def from_statistics(cls, tasks: Any, statistics: Mapping[str, Any], **settings: Any) -> TOOD:
        """A fitted calibrator from statistics that were computed elsewhere: ``[N]`` each, as :attr:`statistics_`.

        Median, MAD and statistics of the rest (names that begin with ``rest``) may be left out, if the variant does not
        need them.
        """
        cal = cls(tasks, **settings)
        cal.partition_ = Partition(tasks)
        cal.statistics_ = checked_statistics(statistics, len(cal.partition_))
        cal._floor_spread()
        cal._compile()
        return cal

    def score(self, logits: ArrayT) -> ArrayT:
        """``[n]``, higher = in-distribution: the largest normalised energy plus λ times its lead over the second.

        The default adds the energy of all columns to that.
        """
        return self._score(logits, assign=False)[0]

    def score_and_assign(self, logits: ArrayT) -> tuple[ArrayT, ArrayT]:
        """Both :meth:`score` and :meth:`assign` from one pass over the logits."""
        return self._score(logits, assign=True)

    def _score(self, logits: ArrayT, assign: bool) -> tuple[ArrayT, ArrayT]:
        channels, logits = self._fitted(), as_array(logits)
        check_columns(logits, channels.partition)
        if hasattr(self, "seen_"):
            check_scale(logits, self.seen_)
        return channels.evaluate(logits, assign)

    def task_energies(self, logits: ArrayT) -> ArrayT:
        """``[n, N]``: E_t, one energy per task, not normalised."""
        return task_energies(logits, Partition(self.tasks))

    def normalized_energies(self, logits: ArrayT) -> ArrayT:
        """``[n, N]``: E_t after normalisation, in the units of the reference task; of the default, in its own."""
        channels, logits = self._fitted(), as_array(logits)
        check_columns(logits, channels.partition)
        normalised = (all_energies(logits, channels.partition) - channels.location) / channels.scale
        if not channels.energy:
            normalised = normalised * channels.gain + channels.offset
        return back(normalised.astype(score_dtype(logits)), like=logits)

    def assign(self, logits: ArrayT) -> ArrayT:
        """``[n]``: the task whose normalised energy is largest."""
        return self._score(logits, assign=True)[1]

    def save(self, path: str | os.PathLike[str], metadata: Mapping[str, str] | None = None) -> None:
        """Write the compiled score and what it was made from to one safetensors file, atomically.

        Parameters
        ----------
        path:
            The file.
        metadata:
            Texts to keep in the file, such as the model's id, the data set and the owner; by default those of a file
            that was loaded. ``tood inspect`` shows them. ``parent`` names the file of the version before.
        """
        channels = self._fitted()
        kept = self.metadata_ if metadata is None else dict(metadata)
        if not all(isinstance(entry, str) for pair in kept.items() for entry in pair):
            raise ToodError(f"metadata: expected texts by name, found {kept!r}")
        self.metadata_ = kept
        rows = self._canaries()
        scores, tasks = channels.evaluate(rows)
        tensors = {**self.statistics_, **channels.arrays(), **(self.seen_.arrays() if hasattr(self, "seen_") else {})}
        settings = {name: value for name, value in self.get_params().items() if name != "tasks"}
        write_tensors(
            path,
            KIND,
            tensors | {"canary.logits": rows, "canary.scores": scores, "canary.tasks": tasks},
            {
                "settings": json.dumps(settings, default=plain),
                "rule": json.dumps(self.rule_),
                "made": json.dumps({"tood": self.version_, "created": self.created_}),
                "metadata": json.dumps(kept),
            },
        )

    def _canaries(self) -> Float64Array:
        """``[4, C]``: logits whose scores travel in the file; drawn anew, so no sample of the user's is in it."""
        channels = self._fitted()
        tasks = channels.partition.column_tasks
        centre, spread = (self.statistics_[name][tasks] for name in ("mean", "std"))
        draws = np.random.default_rng(0).normal(size=(CANARIES, channels.partition.columns))
        return centre + spread * draws - np.log(np.bincount(tasks))[tasks]

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> TOOD:
        """Load a file that :meth:`save` wrote; it scores as on the day it was written, whatever the rule is now."""
        tensors, metadata = read_tensors(path, KIND)
        try:
            channels = Channels.from_arrays(tensors)
            cal = cls(channels.partition, margin=channels.margin)
            vars(cal).update(json.loads(metadata["settings"]))  # not checked: a rule may have gone since
            cal.partition_, cal.channels_, cal.rule_ = channels.partition, channels, dict(json.loads(metadata["rule"]))
            cal.statistics_ = checked_statistics(tensors, len(channels.partition))
            made, cal.metadata_ = json.loads(metadata["made"]), json.loads(metadata["metadata"])
            cal.created_, cal.version_ = made["created"], made["tood"]
            if "seen.mean" in tensors:
                cal.seen_ = Seen.from_arrays(tensors)
            scores, tasks = channels.evaluate(tensors["canary.logits"])
            expected = tensors["canary.scores"]
        except (KeyError, TypeError, ValueError, RecursionError) as error:
            raise ToodError(
                f"{os.fspath(path)}: not a usable calibrator ({error}); run `tood calibrate` again"
            ) from error
        moved = float(np.max(np.abs(scores - expected) / np.maximum(np.abs(expected), 1)))
        if not moved <= MOVED or not np.array_equal(tasks, tensors["canary.tasks"]):
            raise ToodError(
                f"{os.fspath(path)}: its scores have moved by {moved:.2g} since it was written; calibrate again"
            )
        return cal

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """The settings by name, as scikit-learn expects."""
        return {name: getattr(self, name) for name in ("tasks", "variant", "margin", "reference")}

    def set_params(self, **params: Any) -> TOOD:
        """Change settings; variant, margin and reference take effect at once, other tasks need a new ``fit``."""
        for name in params.keys() - self.get_params().keys():
            raise UnknownNameError("setting", name, self.get_params())
        vars(self).update(params)
        self._check_parameters()
        if hasattr(self, "statistics_") and "tasks" not in params:
            self._compile()
        return self

    def __repr__(self) -> str:
        settings = (f"{name}={value!r}" for name, value in self.get_params().items() if name != "tasks")
        fitted = f", fitted to {self.statistics_['count'].sum():.0f} samples" if hasattr(self, "statistics_") else ""
        return f"<TOOD {self.tasks!r}, {', '.join(settings)}{fitted or ', not fitted'}>"

    def _check_parameters(self) -> None:
        if isinstance(self.tasks, Iterator):
            raise ToodError("tasks: expected lists of columns, found an iterator, which can be read only once")
        for name, known in (("variant", get_args(Variant)), ("reference", get_args(Reference))):
            if getattr(self, name) not in known:
                raise UnknownNameError(name, getattr(self, name), known)
        if not (isinstance(self.margin, (int, float, np.number)) and 0 <= self.margin < np.inf):
            raise ToodError(f"margin: expected a number, 0 or more, found {self.margin!r}")

    def _fitted(self) -> Channels:
        if not hasattr(self, "channels_"):
            raise NotFittedError("this TOOD is not fitted yet: call fit(logits, labels) first")
        return self.channels_

    def _floor_spread(self) -> None:
        """Floor zero spreads, so that no variant divides by zero, and warn."""
        floor = least_spread(self.statistics_.get("median", self.statistics_["mean"]))
        flat = np.zeros(len(floor), dtype=bool)
        for name in {"mad", "std"} & {*self.statistics_}:
            flat |= self.statistics_[name] < floor
            self.statistics_[name] = np.maximum(self.statistics_[name], floor)
        if flat.any():
            tasks = ", ".join(map(str, np.flatnonzero(flat)))
            warn(
                f"the calibration energies of task {tasks} have no spread (mad or std 0); it is floored: add "
                "calibration samples or use variant='mean_shift', which ignores the spread"
            )


def checked_statistics(statistics: Mapping[str, Any], tasks: int) -> Statistics:
    """``[N]`` each: the known statistics among the arrays, as float64, checked."""
    if missing := [name for name in OWN if name not in statistics]:
        raise ToodError(f"statistics: expected {', '.join(OWN)}, found no {', '.join(missing)}")
    checked: Statistics = {}
    for name in (*OWN, *(name for name in (*ROBUST, *REST) if name in statistics)):
        values = np.array(statistics[name], dtype=np.float64)
        if values.shape != (tasks,) or not np.isfinite(values).all():
            raise ToodError(f"statistics: {name}: expected one finite number per task, found {values}")
        if values.min() < LEAST.get(name, -np.inf):
            raise ToodError(f"statistics: {name}: expected numbers of {LEAST[name]} or more, found {values}")
        checked[name] = values
    return checked


def version() -> str:
    """The version of this library."""
    from tood import __version__

    return __version__

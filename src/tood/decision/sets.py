"""Conformal prediction sets: the classes an input may belong to; an empty set means that it is unknown."""

from __future__ import annotations

import copy
import json
import os
from collections.abc import Iterator
from typing import Any, Literal, TypeAlias, get_args

import numpy as np
import numpy.typing as npt

from tood.arrays import Float64Array, as_array, back, floats, label_columns
from tood.decision.calibrators import file_of, from_file, score_and_assign
from tood.decision.ranks import check_share, finite, pooled_p_values, pools, warn_pooled
from tood.energy import check_columns
from tood.errors import NotFittedError, ToodError, UnknownNameError
from tood.partition import Partition
from tood.storage.files import plain, read_tensors, write_tensors

__all__ = ["PredictionSets"]

Method: TypeAlias = Literal["lac", "aps"]
Per: TypeAlias = Literal["task", "class"]
KIND = "tood-sets"
SETTINGS = ("method", "unknown", "per")


class PredictionSets:
    """Split-conformal prediction sets behind an out-of-distribution gate.

    An input of the known distribution has its true class in the set with probability at least ``1 - alpha``, over
    calibration samples and input together. The share ``unknown`` of alpha is spent on the gate, which gives inputs with
    an unusually low score the empty set (as :class:`~tood.decision.Conformal` rejects them), the rest on the classes.
    An input is missed only if the gate or the set misses it, and these have probability at most ``unknown * alpha`` and
    ``(1 - unknown) * alpha``.

    Parameters
    ----------
    cal:
        A fitted :class:`~tood.TOOD`: the score of the gate, and the winning task.
    method:
        ``"lac"``: classes whose probability is high enough (Sadinle, Lei and Wasserman 2019), the smallest sets on
        average. ``"aps"``: most probable classes first until enough probability is covered (Romano, Sesia and Candès
        2020, without randomisation), larger sets for harder inputs.
    unknown:
        The share of alpha for the gate, from 0 (no gate) to below 1.
    per:
        Which inputs the promise holds for: ``None`` for all together; ``"task"`` for the inputs of each true task;
        ``"class"`` for those of each true class. Gate and set then compare an input, for each class, with calibration
        samples of that task or class. A class with too few samples takes those of its task, or all, with a warning.

    Examples
    --------
    >>> from tood import TOOD
    >>> rng = np.random.default_rng(0)
    >>> def draw(labels): return rng.normal(size=(len(labels), 4)) + 6 * np.eye(4)[labels]
    >>> labels = np.repeat(np.arange(4), 100)
    >>> sets = PredictionSets(TOOD([[0, 1], [2, 3]]).fit(draw(labels), labels)).fit(draw(labels), labels)
    >>> sets.predict(np.array([[6.0, 0, 0, 0], [0, 0, 0, 0]]), alpha=0.1).astype(int)
    array([[1, 0, 0, 0],
           [0, 0, 0, 0]])
    """

    def __init__(
        self,
        cal: Any,
        method: Method = "lac",
        unknown: float = 0.5,
        per: Per | None = None,
    ) -> None:
        if method not in get_args(Method):
            raise UnknownNameError("method", method, get_args(Method))
        if per is not None and per not in get_args(Per):
            raise UnknownNameError("per", per, get_args(Per))
        if not 0 <= unknown < 1:
            raise ToodError(f"unknown: expected a share from 0 to below 1, found {unknown}")
        self.cal = cal
        self.method = method
        self.unknown = unknown
        self.per = per

    def fit(self, logits: Any, labels: Any) -> PredictionSets:
        """Read calibration samples that ``cal.fit`` did not use.

        Parameters
        ----------
        logits:
            ``[n, C]``.
        labels:
            ``[n]``, the logit column of each sample's class.
        """
        self.cal = copy.copy(self.cal)  # later changes to the caller's calibrator must not break the promise
        logits = as_array(logits)
        columns = label_columns(labels, Partition(self.cal.tasks).columns, len(logits))
        if len(columns) == 0:
            raise ToodError("logits: expected at least one calibration sample, found none")
        scores, typical = self._scores(logits)
        self._gate, self._typical, self._labels = scores, typical[np.arange(len(columns)), columns], columns
        return self

    def predict(self, logits: Any, alpha: float = 0.1) -> Any:
        """``[n, C]`` bool: the classes in the set of each input; a row without any is unknown.

        Parameters
        ----------
        logits:
            ``[n, C]``.
        alpha:
            The share of known inputs whose true class may be missing.
        """
        self._fitted()
        check_share("alpha", alpha)
        spent, samples = min(self.unknown or 1, 1 - self.unknown) * alpha, len(self._gate)
        needed = int(np.ceil(1 / spent)) - 1
        if samples < needed:
            raise ToodError(
                f"alpha: {samples} calibration samples cannot leave anything out at alpha={alpha}: at least {needed} "
                "are needed"
            )
        logits = as_array(logits)
        scores, typical = self._scores(logits)
        result = np.empty(typical.shape, dtype=bool)
        for columns, rows in self._groups(needed, alpha):
            accepted = pooled_p_values([np.sort(self._gate[rows])], [scores]) > self.unknown * alpha
            own = typical[:, columns]
            within = pooled_p_values([np.sort(self._typical[rows])], [own.reshape(-1)]).reshape(own.shape)
            result[:, columns] = accepted[:, None] & (within > (1 - self.unknown) * alpha)
        return back(result, like=logits)

    def _groups(self, needed: int, alpha: float) -> Iterator[tuple[list[int], Any]]:
        """Columns that are compared with the same calibration samples, and these."""
        partition = Partition(self.cal.tasks)
        if self.per is None:
            yield [*range(partition.columns)], slice(None)
            return
        tasks = [list(task) for task in partition]
        groups = tasks if self.per == "task" else [[c] for c in range(partition.columns)]
        count = [int(np.isin(self._labels, group).sum()) for group in groups]
        parents = tasks if self.per == "class" else ()
        chosen = pools(dict(enumerate(count)), needed, parents)
        if small := [group for group, pool in chosen.items() if pool != [group]]:
            warn_pooled(self.per, small, needed, alpha)
        for group, pool in chosen.items():
            yield groups[group], np.isin(self._labels, [column for member in pool for column in groups[member]])

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the calibrator and the calibration scores to one safetensors file."""
        self._fitted()
        settings = {name: getattr(self, name) for name in SETTINGS}
        tensors = {"calibrator": file_of(self.cal), "gate": self._gate, "typical": self._typical}
        tensors["labels"] = self._labels
        write_tensors(path, KIND, tensors, {"settings": json.dumps(settings, default=plain)})

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> PredictionSets:
        """Load a file that :meth:`save` wrote."""
        tensors, metadata = read_tensors(path, KIND)
        try:
            settings = json.loads(metadata["settings"])
            self = cls(from_file(tensors["calibrator"]), **{k: settings[k] for k in SETTINGS if k in settings})
            self._gate, self._typical = finite(tensors["gate"], "gate"), tensors["typical"]
            finite(self._typical, "typical")
            self._labels = tensors.get("labels", np.empty(0))  # none in files of format 2 of version 0.2
            if self.per and self._labels.shape != self._gate.shape:
                raise ToodError(f"expected {len(self._gate)} labels, found {len(self._labels)}")
        except (KeyError, TypeError, ValueError, RecursionError) as error:
            raise ToodError(f"{os.fspath(path)}: not a usable file of prediction sets: {error}") from error
        return self

    def _fitted(self) -> None:
        if not hasattr(self, "_gate"):
            raise NotFittedError("these PredictionSets are not fitted yet: call fit(logits, labels) first")

    def _scores(self, logits: Any) -> tuple[npt.NDArray[Any], Float64Array]:
        """The score of the gate ``[n]``, and how typical each class is of the input ``[n, C]``, higher = more."""
        check_columns(logits, Partition(self.cal.tasks))
        values = floats(logits, "logits", ndim=2).astype(np.float64)
        typical = _probability(values) if self.method == "lac" else _mass_before(values)
        return score_and_assign(self.cal, logits)[0], typical


def _probability(logits: Float64Array) -> Float64Array:
    """``[n, C]``: softmax, from 0 to 1."""
    exponents = np.exp(logits - logits.max(axis=1, keepdims=True))
    probabilities: Float64Array = exponents / exponents.sum(axis=1, keepdims=True)
    return probabilities


def _mass_before(logits: Float64Array) -> Float64Array:
    """``[n, C]``: 1 minus the probability of all classes that are more probable; 1 for the most probable one."""
    probabilities = _probability(logits)
    order = np.argsort(-probabilities, axis=1, kind="stable")
    ranked = np.take_along_axis(probabilities, order, axis=1)
    before = np.cumsum(ranked, axis=1) - ranked
    out = np.empty_like(before)
    np.put_along_axis(out, order, np.clip(1 - before, 0, 1), axis=1)
    return out

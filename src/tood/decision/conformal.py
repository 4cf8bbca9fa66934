"""Conformal decisions: accept or reject each input with a finite-sample guarantee.

A p-value says how unusual a score is among the scores of samples known to be in-distribution. Rejecting if
``p <= alpha`` rejects at most a share ``alpha`` of in-distribution inputs, however few the samples and whatever the
score, provided that the samples are exchangeable with the inputs: the same source, unseen by network and calibrator.
"""

from __future__ import annotations

import copy
import functools
import json
import os
from collections.abc import Iterable
from typing import Any, Literal, NamedTuple, TypeAlias, cast, get_args

import numpy as np
import numpy.typing as npt

from tood.arrays import Float64Array, FloatArray, IntArray, as_array, back, floats, indices, label_columns
from tood.calibration.statistics import task_of_labels
from tood.decision.calibrators import file_of, from_file, score_and_assign
from tood.decision.ranks import check_seed, check_share, finite, lower_quantile, pooled_p_values, pools, warn_pooled
from tood.decision.risk import selective_threshold
from tood.errors import NotFittedError, ToodError, UnknownNameError
from tood.partition import Partition
from tood.storage.files import plain, read_tensors, write_tensors

__all__ = ["Conformal", "Decision"]

PerTask: TypeAlias = Literal["winning", "true"]
Groups: TypeAlias = dict[int, Float64Array]  # ascending scores per task; one group, 0, if tasks make no difference
KIND = "tood-conformal"
SETTINGS = ("per_task", "seed", "per_class")


class Decision(NamedTuple):
    """Result of :meth:`Conformal.decide`; arrays of the same kind as the logits."""

    accept: Any  # [n] bool: not distinguishable from the in-distribution samples
    p_value: Any  # [n] float64
    score: Any  # [n]
    task: Any  # [n] int64, the winning task; None if the calibrator does not assign one


class Conformal:
    """Split-conformal outlier test: a bound on the share of in-distribution inputs that is rejected.

    ``per_task=None``: by exchangeability the rank of an in-distribution score among the calibration scores is uniform,
    so ``P(reject | ID) <= alpha`` (Vovk, Gammerman and Shafer, "Algorithmic learning in a random world", 2005).

    ``per_task="winning"`` ranks an input among the calibration samples that the same task won. The winner is a function
    of the input alone and samples stay exchangeable within it: ``P(reject | ID, winning task) <= alpha`` for each.

    ``per_task="true"`` ranks an input within every true task and keeps the largest p-value. An input of task t is
    rejected only if its p-value within t is at most alpha, hence ``P(reject | ID, true task) <= alpha`` for each,
    even if tasks become more or less frequent than they were; the price is fewer rejections.

    ``per_class=True`` ranks the input's logit of each class among those of calibration samples of that class, and keeps
    the largest p-value: an input is rejected if it is unusual for every class. ``P(reject | ID, true class) <= alpha``
    for each class with ``1 / alpha - 1`` samples or more. A class with fewer is ranked among the samples of its task,
    or of all tasks if these are too few, each by the logit of its own class; the bound then holds over these, and a
    warning names the classes. It rejects fewer unknown inputs than one bound for all, and there is no threshold.

    The probabilities are over the calibration set and the input together.

    Parameters
    ----------
    cal:
        Anything with ``score(logits)``, higher = ID, and perhaps ``assign(logits)`` and ``tasks``: a fitted
        :class:`~tood.TOOD` (with one task, ``variant="none"`` and no margin it is plain energy), or a detector.
    per_task:
        ``None``, ``"winning"`` or ``"true"``, see above.
    seed:
        Seed of the folds of :meth:`cross`.
    per_class:
        See above; not together with ``per_task``.

    Examples
    --------
    >>> from tood import TOOD
    >>> rng = np.random.default_rng(0)
    >>> def draw(labels): return rng.normal(size=(len(labels), 4)) + 6 * np.eye(4)[labels]
    >>> labels = np.repeat(np.arange(4), 100)
    >>> cal = TOOD([[0, 1], [2, 3]]).fit(draw(labels), labels)
    >>> decision = Conformal(cal).fit(draw(labels)).decide(np.zeros((1, 4)), alpha=0.05)
    >>> decision.accept.tolist(), decision.p_value.round(3).tolist()
    ([False], [0.002])
    """

    def __init__(
        self,
        cal: Any,
        per_task: PerTask | None = None,
        seed: int = 0,
        per_class: bool = False,
    ) -> None:
        self.cal = cal
        self.per_task = per_task
        self.seed = seed
        self.per_class = per_class
        self._wrong: tuple[FloatArray, npt.NDArray[np.bool_]] | None = None  # scores, and whether the answer is wrong
        self._check_parameters()

    def fit(self, logits: Any, labels: Any = None) -> Conformal:
        """Score calibration samples that ``cal.fit`` did not use.

        Parameters
        ----------
        logits:
            ``[n, C]``, or whatever ``cal.score`` takes; at least ``1 / alpha - 1`` samples (of each task).
        labels:
            ``[n]``, the logit column of each sample's class; needed for ``per_task="true"``, ``per_class``
            and :meth:`risk_threshold` only.
        """
        self._check_parameters()
        self.cal = copy.copy(self.cal)  # later changes to the caller's calibrator must not break the promise
        self._folds = [(self.cal, self._ranks(self.cal, logits, labels))]
        self._wrong = None if labels is None else self._errors(logits, labels)
        return self._begin()

    @classmethod
    def cross(cls, cal: Any, logits: Any, labels: Any, folds: int = 5, **settings: Any) -> Conformal:
        """Cross-conformal: one set of samples serves both to fit the calibrator and to rank.

        Each of K folds of the n samples is scored by a copy of ``cal`` fitted to the others, and an input is ranked
        among all n (Vovk, "Cross-conformal predictors", 2015). Twice the mean of the folds' p-values is a p-value
        (Rüschendorf 1982), so ``P(reject | ID) <= 2 alpha + 2 (K - 1) / (n + K)``. In practice it is about alpha.

        Parameters
        ----------
        cal:
            A calibrator; it is fitted to all samples, and gives the score and the winning task.
        logits, labels:
            ``[n, C]`` and ``[n]``, as ``cal.fit`` takes them.
        folds:
            Number of folds; an input is scored once per fold.
        settings:
            As for the class. ``per_task="winning"`` is refused: the folds need not agree on the winner.
        """
        self = cls(cal, **settings)
        self._check_parameters()
        if self.per_task == "winning":
            raise ToodError("per_task: expected None or 'true' for cross-conformal, found 'winning'")
        logits = as_array(logits)
        labels = indices(labels, "labels", length=len(logits))
        if not 2 <= folds <= len(labels):
            raise ToodError(f"folds: expected 2 to {len(labels)}, the number of samples, found {folds}")
        cal.fit(logits, labels)
        self.cal = copy.copy(cal)  # as in `fit`
        order = np.random.default_rng(self.seed).permutation(len(labels))
        if self.per_task == "true" or self.per_class:  # each task or class in every fold; drawn at random within it
            groups = labels if self.per_class else _true_tasks(cal, labels, len(labels))
            order = order[np.argsort(groups[order], kind="stable")]
        fold = np.empty(len(labels), dtype=np.int64)
        fold[order] = np.arange(len(labels)) % folds
        self._folds = []
        for k in range(folds):
            rest, held_out = np.flatnonzero(fold != k), np.flatnonzero(fold == k)
            try:
                fitted = copy.deepcopy(cal).fit(logits[rest], labels[rest])
                self._folds.append((fitted, self._ranks(fitted, logits[held_out], labels[held_out])))
            except ToodError as error:
                raise ToodError(f"fold {k} of {folds}: {error}; take fewer folds or more samples") from error
        return self._begin()

    def decide(self, logits: Any, alpha: float = 0.05) -> Decision:
        """Accept or reject each input.

        Parameters
        ----------
        logits:
            ``[n, C]``, or whatever ``cal.score`` takes.
        alpha:
            The share of in-distribution inputs that may be rejected.
        """
        groups, everything = self._usable(alpha)
        scores, tasks = score_and_assign(self.cal, logits)
        if self.per_task == "winning":
            p = np.empty(len(scores))
            for t in np.unique(cast(IntArray, tasks)):
                rows = np.flatnonzero(tasks == t)
                p[rows] = pooled_p_values(groups.get(int(t), everything), [scores[rows]])
        elif self.per_class:
            own = floats(getattr(logits, "logits", logits), "logits", ndim=2).T
            p = _largest(pooled_p_values(groups[c], [own[c]] * len(self._folds)) for c in groups)
        else:
            each = [scores if cal is self.cal else score_and_assign(cal, logits)[0] for cal, _ in self._folds]
            p = _largest(pooled_p_values(known, each) for known in groups.values())
        like = getattr(logits, "logits", logits)
        task = None if tasks is None else back(tasks, like)
        return Decision(back(p > alpha, like), back(p, like), back(scores, like), task)

    def thresholds(self, alpha: float = 0.05) -> npt.NDArray[np.float64]:
        """The score an input must reach to be accepted.

        The same decisions as :meth:`decide`, as one number (or, with ``per_task="winning"``, ``[N]``, one per winning
        task) to ship in an exported scorer. Not for cross-conformal or decisions per class.
        """
        groups, everything = self._usable(alpha)
        if len(self._folds) > 1 or self.per_class:
            raise ToodError(
                "thresholds: only a single calibration set and decisions that are not per class reduce to a threshold"
            )
        lowest = {group: lower_quantile(known[0], alpha) for group, known in groups.items()}
        if self.per_task == "winning":
            rest = lower_quantile(everything[0], alpha)
            return np.array([lowest.get(t, rest) for t in range(len(Partition(self.cal.tasks)))])
        return np.array(min(lowest.values()))

    def risk_threshold(self, risk: float = 0.05, delta: float = 0.1) -> float:
        """The threshold above which at most ``risk`` of the answers are wrong, with probability ``1 - delta``.

        The answer is the largest logit. Needs the labels in :meth:`fit`; see
        :func:`~tood.decision.risk.selective_threshold` for the guarantee. Accept if ``score >= threshold``.
        """
        self._fitted()
        if self._wrong is None:
            raise ToodError("risk: needs labelled samples; call fit(logits, labels), or `tood calibrate --holdout 0.5`")
        return selective_threshold(*self._wrong, risk=risk, delta=delta)

    def __repr__(self) -> str:
        fitted = f"fitted to {self.samples} samples" if self.samples else "not fitted"
        return f"<Conformal {self.cal!r}, per_task={self.per_task!r}, {fitted}>"

    @property
    def samples(self) -> int:
        """The number of samples that decisions rest on."""
        return sum(_samples(fold.values()) for _, fold in self._folds) if hasattr(self, "_folds") else 0

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the calibrator or detector (of every fold) and the calibration scores to one safetensors file."""
        self._fitted()
        cals = [cal for cal, _ in self._folds]
        if not hasattr(self.cal, "save"):
            raise ToodError(f"cal: only TOOD and detectors can be saved, found {type(self.cal).__name__}")
        settings = {name: getattr(self, name) for name in SETTINGS}
        tensors: dict[str, npt.NDArray[Any]]
        tensors = {f"calibrator.{k}": file_of(cal) for k, cal in enumerate(dict.fromkeys([self.cal, *cals]))}
        for k, (_, groups) in enumerate(self._folds):
            tensors[f"scores.{k}"] = np.concatenate([*groups.values()])
            tensors[f"groups.{k}"] = np.repeat([*groups], [*map(len, groups.values())])
        if self._wrong is not None:
            tensors["errors.scores"], tensors["errors.wrong"] = self._wrong
        write_tensors(path, KIND, tensors, {"settings": json.dumps(settings, default=plain)})

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Conformal:
        """Load a file that :meth:`save` wrote."""
        tensors, metadata = read_tensors(path, KIND)
        try:
            cals = [from_file(tensors[f"calibrator.{k}"]) for k in range(sum("calibrator" in name for name in tensors))]
            settings = json.loads(metadata["settings"])
            self = cls(cals[0], **{name: settings[name] for name in SETTINGS if name in settings})
            self._folds = [
                (cal, _by_group(finite(tensors[f"scores.{k}"], "scores"), tensors[f"groups.{k}"]))
                for k, cal in enumerate(cals[1:] or cals)
            ]
            if "errors.scores" in tensors:
                self._wrong = tensors["errors.scores"], tensors["errors.wrong"].astype(bool)
        except (KeyError, IndexError, TypeError, ValueError, RecursionError) as error:
            raise ToodError(f"{os.fspath(path)}: not a usable conformal file: {error}") from error
        return self._begin()

    def _begin(self) -> Conformal:
        self._at: dict[float, tuple[dict[int, list[Float64Array]], list[Float64Array]]] = {}  # results of _usable
        return self

    def _ranks(self, cal: Any, logits: Any, labels: Any) -> Groups:
        """The calibration scores, sorted, of each group."""
        scores, tasks = score_and_assign(cal, logits)
        if len(scores) == 0:
            raise ToodError("logits: expected at least one calibration sample, found none")
        if self.per_class:
            if labels is None:
                raise ToodError("per_class: expected labels, found none")
            own = floats(getattr(logits, "logits", logits), "logits", ndim=2)
            tasks = label_columns(labels, own.shape[1], len(own))
            scores = own[np.arange(len(own)), tasks]
        elif self.per_task is None:
            tasks = np.zeros(len(scores), dtype=np.int64)
        elif self.per_task == "true":
            tasks = _true_tasks(cal, labels, rows=len(scores))
        elif tasks is None:
            raise ToodError(f"per_task='winning': expected a calibrator with assign, found {type(cal).__name__}")
        return _by_group(scores, tasks)

    def _errors(self, logits: Any, labels: Any) -> tuple[FloatArray, npt.NDArray[np.bool_]] | None:
        """Score and error of each sample; None if there are no logits to take an answer from."""
        outputs = getattr(logits, "logits", logits)
        if outputs is None:
            return None
        answers = floats(outputs, "logits", ndim=2).argmax(axis=1)
        return score_and_assign(self.cal, logits)[0], answers != indices(labels, "labels", length=len(answers))

    def _fitted(self) -> None:
        if not hasattr(self, "_folds"):
            raise NotFittedError("this Conformal is not fitted yet: call fit(logits, labels) first")

    def _usable(self, alpha: float) -> tuple[dict[int, list[Float64Array]], list[Float64Array]]:
        """Calibration scores per group, one entry per fold, and those of all groups.

        A group with too few samples to reject anything at ``alpha`` takes those of all groups (a class first those of
        its task), with a warning: its bound then holds over these. Too few samples in all are an error.
        """
        self._fitted()
        if alpha in self._at:
            return self._at[alpha]
        check_share("alpha", alpha)
        found = dict.fromkeys(group for _, fold in self._folds for group in fold)
        everything = self._pooled(found)
        needed = int(np.ceil(1 / alpha)) - 1
        if (total := _samples(everything)) < needed:
            raise ToodError(
                f"alpha: {total} calibration samples cannot reject anything at alpha={alpha}: at least {needed} are "
                "needed"
            )
        counts = {group: _samples(self._pooled([group])) for group in found}
        parents = Partition(self.cal.tasks) if self.per_class and hasattr(self.cal, "tasks") else ()
        chosen = pools(counts, needed, parents)
        if small := [group for group, pool in chosen.items() if pool != [group] and counts.get(group, 0) < needed]:
            warn_pooled("class" if self.per_class else "task", small, needed, alpha)
        groups = {group: self._pooled(pool) for group, pool in chosen.items()}
        self._at[alpha] = groups, everything
        return self._at[alpha]

    def _pooled(self, groups: Iterable[int]) -> list[Float64Array]:
        """The calibration scores of some groups together, one entry per fold."""
        chosen = list(groups)
        return [
            np.sort(np.concatenate([np.empty(0), *(fold[group] for group in chosen if group in fold)]))
            for _, fold in self._folds
        ]

    def _check_parameters(self) -> None:
        if self.per_class and self.per_task is not None:
            raise ToodError(f"per_class: expected per_task=None, found {self.per_task!r}")
        if self.per_task is not None and self.per_task not in get_args(PerTask):
            raise UnknownNameError("per_task", self.per_task, get_args(PerTask))
        check_seed(self.seed)


def _true_tasks(cal: Any, labels: Any, rows: int) -> IntArray:
    if labels is None or not hasattr(cal, "tasks"):
        raise ToodError("per_task='true': expected labels, and a calibrator with tasks")
    return task_of_labels(labels, Partition(cal.tasks), rows=rows)


def _by_group(scores: FloatArray, groups: IntArray) -> Groups:
    return {int(group): np.sort(scores[groups == group].astype(np.float64)) for group in np.unique(groups)}


def _largest(p_values: Iterable[Float64Array]) -> Float64Array:
    return functools.reduce(np.maximum, p_values)


def _samples(folds: Iterable[Float64Array]) -> int:
    return sum(map(len, folds))

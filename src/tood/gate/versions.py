"""A deployed version: its decision and its outputs; which samples and classes two versions share."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from tood.arrays import IntArray, finite, floats, indices, label_columns
from tood.decision import Conformal, score_and_assign
from tood.errors import ToodError
from tood.gate.statistics import Decided, Outcomes
from tood.outputs.outputs import Outputs
from tood.partition import Partition

__all__ = ["Shared", "Version", "outcomes", "shared"]

FEWEST = 30  # samples of a set
Decide: TypeAlias = Callable[[Outputs], Decided]


@dataclass(eq=False)
class Version:
    """One deployed model: its decision, and its outputs on the evaluation samples.

    Parameters
    ----------
    decision:
        A :class:`~tood.decision.Conformal`, or a calibrator or detector with ``threshold``.
    known:
        Outputs on labelled test samples of known classes.
    unknown:
        Outputs on samples of no known class, by the name of the set.
    traffic:
        Outputs on unlabelled inputs; takes the place of ``unknown`` if there is none.
    classes:
        ``[C]`` names of the logit columns. Classes of two versions are matched by them.
    calibration:
        Outputs on labelled samples, for what recalibration would give.
    ids:
        Identifiers of samples by set: ``"known"``, ``"traffic"`` or a name in ``unknown``. Rows are paired by them.
    predictions:
        ``[n]`` predicted columns of ``known``; by default those of the largest logits.
    threshold:
        Accept if the score reaches it; by default the decision's own, at ``alpha``.
    alpha:
        The share of known inputs that a ``Conformal`` may reject.
    tasks:
        The columns of each task, if the score does not know them.
    """

    decision: Any
    known: Outputs
    unknown: Mapping[str, Outputs] = field(default_factory=dict)
    traffic: Outputs | None = None
    classes: Sequence[str] | None = None
    calibration: Outputs | None = None
    ids: Mapping[str, Any] = field(default_factory=dict)
    predictions: Any = None
    threshold: float | None = None
    alpha: float = 0.05
    tasks: Any = None

    def __post_init__(self) -> None:
        self.cal = self.decision.cal if isinstance(self.decision, Conformal) else self.decision
        tasks = self.tasks if self.tasks is not None else getattr(self.cal, "tasks", None)
        self.partition = Partition([range(np.shape(self.known.logits)[1])] if tasks is None else tasks)
        self.known = self._checked("known", self.known)
        if self.known.labels is None:
            raise ToodError("known: expected labels, found none")
        labels = label_columns(self.known.labels, self.partition.columns, len(self.known))
        self.known = replace(self.known, labels=labels)
        predicted = self.known.logits.argmax(axis=1) if self.predictions is None else self.predictions
        self.correct = indices(predicted, "predictions", len(labels)) == labels
        if (seen := getattr(self.cal, "seen_", None)) is not None and (moved := seen.moved(self.known.logits)):
            raise ToodError(f"the decision file may be of another model: {moved}")
        if self.classes is not None and len(set(self.classes)) != self.partition.columns:
            raise ToodError(f"classes: expected {self.partition.columns} different names, found {list(self.classes)}")
        self.sets = {"known": self.known} | {name: self._checked(name, rows) for name, rows in self.unknown.items()}
        self.sets |= {} if self.traffic is None else {"traffic": self._checked("traffic", self.traffic)}

    def _checked(self, name: str, outputs: Outputs) -> Outputs:
        logits = finite(floats(outputs.logits, f"{name}: logits", ndim=2), f"{name}: logits")
        if logits.shape[1] != self.partition.columns:
            raise ToodError(
                f"{name}: logits have {logits.shape[1]} columns, the decision has {self.partition.columns}: the "
                "decision file is of another model"
            )
        return replace(outputs, logits=logits)

    def decide(self, outputs: Outputs) -> Decided:
        """Accept and score, as deployed."""
        rows = outputs if hasattr(self.cal, "needs") else outputs.logits
        if isinstance(self.decision, Conformal) and self.threshold is None:
            decided = self.decision.decide(rows, self.alpha)
            return decided.accept, decided.score
        limit, scores = self.limit, score_and_assign(self.cal, rows)[0]
        return scores >= limit, scores

    @property
    def limit(self) -> float:
        """The one score that an input must reach to be accepted."""
        kept = self.threshold if self.threshold is not None else getattr(self.cal, "metadata_", {}).get("threshold")
        if kept is not None:
            return float(kept)
        if not isinstance(self.decision, Conformal):
            raise ToodError("decision: a calibrator decides only with a threshold; give one, or a conformal decision")
        try:
            return float(self.decision.thresholds(self.alpha))
        except (ToodError, TypeError) as error:  # cross-fitted, randomised, or one per task
            raise ToodError("there is no single threshold") from error


class Shared(NamedTuple):
    """What two versions share."""

    columns: IntArray  # [C of OLD]: the column of each class in NEW, -1 if NEW does not know it
    rows: dict[str, tuple[IntArray, IntArray]]  # rows in OLD and in NEW of the same samples, per set
    notes: list[str]


def shared(old: Version, new: Version) -> Shared:
    """Match the classes by name and the samples by id; raise if that is not possible."""
    columns = _columns(old, new)
    if (set(old.sets) ^ set(new.sets)) - {"future"}:
        raise ToodError(f"unknown: OLD has the sets {sorted(old.sets)}, NEW has {sorted(new.sets)}")
    names = [name for name in old.sets if name in new.sets]
    if len(names) == 1:
        raise ToodError("unknown: expected at least one set of unknown samples, or traffic, in OLD and NEW; found none")
    notes = [f"classes that NEW does not know, left out: {(columns < 0).sum()}"] if (columns < 0).any() else []
    rows = {}
    for name in names:
        both = np.arange(len(old.sets[name])), np.arange(len(new.sets[name]))
        if name == "known":
            both = np.flatnonzero(columns[old.known.labels] >= 0), np.flatnonzero(np.isin(new.known.labels, columns))
        rows[name] = _same_samples(name, both, old.ids.get(name), new.ids.get(name))
        if len(rows[name][0]) < max(map(len, both)):
            notes.append(f"{name}: {len(rows[name][0])} samples are in both, of {len(both[0])} and {len(both[1])}")
    differ = columns[old.known.labels[rows["known"][0]]] != new.known.labels[rows["known"][1]]
    if differ.any():
        raise ToodError(
            f"known: {differ.sum()} of {len(differ)} samples have another label in NEW: other samples, or classes in "
            "another order; store ids of samples and names of classes"
        )
    return Shared(columns, rows, notes)


def outcomes(version: Version, rows: Mapping[str, IntArray], decide: Decide) -> Outcomes:
    """What a version, with its own or another decision, does with some of its samples."""
    decided = {}
    for name, chosen in rows.items():
        accept, scores = decide(version.sets[name])
        decided[name] = accept[chosen], scores[chosen]
    known, traffic = decided.pop("known"), decided.pop("traffic", None)
    return Outcomes(version.correct[rows["known"]], known, decided, traffic)


def _columns(old: Version, new: Version) -> IntArray:
    """``[C of OLD]``: the column in NEW of each class, by name, else by place; -1 if there is none."""
    if old.classes is not None and new.classes is not None:
        places = {name: place for place, name in enumerate(new.classes)}
        columns = np.array([places.get(name, -1) for name in old.classes])
        if (columns < 0).all():
            raise ToodError(f"classes: OLD and NEW share no name; OLD has {list(old.classes)[:5]}")
        return columns
    before, after = ([sorted(task) for task in version.partition] for version in (old, new))
    if (len(before) > 1 and before != after[: len(before)]) or old.partition.columns > new.partition.columns:
        raise ToodError("classes: the tasks of OLD are not the first tasks of NEW; store the names of the classes")
    return np.arange(old.partition.columns)


def _same_samples(name: str, rows: tuple[Any, Any], old_ids: Any, new_ids: Any) -> tuple[IntArray, IntArray]:
    """Rows of OLD and NEW that are the same samples: by id, else by place."""
    if (old_ids is None) != (new_ids is None):
        raise ToodError(f"{name}: only {'NEW' if old_ids is None else 'OLD'} has ids; store them in both or in neither")
    if old_ids is not None:
        ids = np.asarray(old_ids)[rows[0]], np.asarray(new_ids)[rows[1]]
        if any(len(np.unique(which)) != len(which) for which in ids):
            raise ToodError(f"{name}: ids: expected each id once, found one more often")
        _, first, second = np.intersect1d(ids[0], ids[1], assume_unique=True, return_indices=True)
        rows = rows[0][first], rows[1][second]
    elif len(rows[0]) != len(rows[1]):
        raise ToodError(f"{name}: OLD has {len(rows[0])} samples, NEW has {len(rows[1])}; store ids to pair them")
    if len(rows[0]) < FEWEST:
        raise ToodError(f"{name}: expected at least {FEWEST} samples in both versions, found {len(rows[0])}")
    return rows

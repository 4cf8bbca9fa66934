"""Compare two deployed versions: verdict, changes per task and class, and what other decisions would give."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from tood.calibration import TOOD
from tood.decision import Conformal
from tood.errors import ToodError
from tood.gate.statistics import Change, Judged, Verdict, by_group, judge, more_samples
from tood.gate.versions import Decide, Shared, Version, outcomes, shared
from tood.outputs.outputs import Outputs
from tood.partition import Partition
from tood.storage.files import for_json

__all__ = ["Gate", "Way", "compare"]

FOLDS = 5
LISTED = 20  # samples that are now rejected
SAYS = {"ship": "Ship", "recalibrate": "Recalibrate first", "block": "Do not ship", "undecided": "Cannot tell"}


class Way(NamedTuple):
    """Another decision for the new model: what it would give, or why it cannot be tried."""

    name: str
    judged: Judged | None
    problem: str = ""

    def __str__(self) -> str:
        if self.judged is None:
            return f"{self.name}: {self.problem}"
        shares = (f"{c.new:.1%} of {c.of}" for c in self.judged.changes if "rejected" in c.name)
        return f"{self.name}: rejects {', '.join(shares)} ({self.judged.verdict})"


@dataclass(frozen=True, eq=False)
class Gate:
    """Result of :func:`compare`; ``print`` shows the verdict in three lines."""

    verdict: Verdict
    judged: Judged
    tasks: list[Change]
    classes: list[Change]
    ways: list[Way]
    remedies: list[str]  # names of the ways that are not blocked, if this version is
    now_rejected: list[Any]  # ids or rows of known samples that were accepted, the first 20
    notes: list[str]
    max_loss: float
    alpha: float

    @property
    def text(self) -> str:
        """The verdict, the other decisions, and the worst task, in three lines."""
        known, worst = self.judged.changes[1], min(self.tasks, key=lambda change: change.gain)
        return (
            f"{SAYS[self.verdict]}: {self._reason()}.\n"
            f"Other decisions for NEW: {'; '.join(map(str, self.ways))}.\n"
            f"Largest fall within a task: {self.describe(worst)}; {known.flips[0]:,} of {known.samples:,} "
            "known inputs were accepted and are now rejected."
        )

    def __str__(self) -> str:
        return self.text

    def describe(self, change: Change) -> str:
        """A change in words."""
        low, high = (100 * bound for bound in change.interval(self.alpha))
        return (
            f"{change.name} ({change.of}) from {change.old:.1%} to {change.new:.1%}, {change.points:+.1f} points "
            f"({1 - self.alpha:.0%} interval {low:+.1f} to {high:+.1f})"
        )

    def _reason(self) -> str:
        if self.judged.blocking:
            worst, *more = sorted(self.judged.blocking, key=lambda change: change.gain)
            remedy = f"; this avoids it: {', '.join(self.remedies)}" if self.remedies else ""
            return f"{self.describe(worst)}{f', and {len(more)} more' * bool(more)}{remedy}"
        if self.verdict == "ship":
            return f"no metric loses more than {self.max_loss:g} points ({1 - self.alpha:.0%} confidence)"
        counts: dict[str, int] = {}
        for change in self.judged.undecided:
            counts[change.of] = max(counts.get(change.of, 0), more_samples(change, self.max_loss, self.alpha))
        wanted = " and ".join(f"{count:,} more samples of {of}" for of, count in counts.items())
        least = min(self.judged.undecided, key=lambda change: change.interval(self.alpha)[0])
        return f"about {wanted} are needed; {self.describe(least)}"

    def to_dict(self) -> dict[str, Any]:
        """Everything, ready for JSON."""

        def entries(changes: list[Change]) -> list[dict[str, Any]]:
            return [change._asdict() | {"interval": change.interval(self.alpha)} for change in changes]

        ways = [
            {"name": way.name, "problem": way.problem, "verdict": way.judged and way.judged.verdict}
            | {"changes": entries(way.judged.changes if way.judged else [])}
            for way in self.ways
        ]
        changes = self.judged._asdict() | {"tasks": self.tasks, "classes": self.classes}
        names = ("verdict", "text", "max_loss", "alpha", "remedies", "now_rejected", "notes")
        found: dict[str, Any] = {name: getattr(self, name) for name in names} | {"ways": ways}
        return for_json(found | {name: entries(some) for name, some in changes.items()})


def compare(
    old: Version, new: Version, max_loss: float = 1.0, alpha: float = 0.05, task_loss: float | None = None
) -> Gate:
    """Compare each version's own deployed decision on the classes and samples that both know.

    Parameters
    ----------
    old, new:
        The version in production, and the candidate, with outputs on the same samples.
    max_loss:
        Points that accuracy, known accepted and unknown rejected may each lose.
    alpha:
        Probability that a version within the limits is blocked, and that one beyond them is shipped, at most.
    task_loss:
        Points that accuracy and known accepted may lose within a task; by default 5, or ``max_loss`` if that is more.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> def draw(labels, signal): return signal * np.eye(4)[labels] + rng.normal(size=(len(labels), 4))
    >>> labels, none = np.repeat(np.arange(4), 500), np.zeros(2000, dtype=int)
    >>> cal = TOOD([[0, 1], [2, 3]]).fit(draw(labels, 8), labels)
    >>> decision = Conformal(cal).fit(draw(labels, 8))
    >>> versions = [
    ...     Version(decision, Outputs(draw(labels, 8), labels=labels), {"noise": Outputs(draw(none, signal))})
    ...     for signal in (0, 6)
    ... ]
    >>> compare(*versions).verdict
    'block'
    """
    if not (max_loss > 0 and 0 < alpha < 0.5):
        raise ToodError(f"expected max_loss above 0 and alpha between 0 and 0.5, found {max_loss} and {alpha}")
    both = shared(old, new)
    rows = {name: pair[1] for name, pair in both.rows.items()}
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "logits: ")  # unknown samples look unlike known ones
        before = outcomes(old, {name: pair[0] for name, pair in both.rows.items()}, old.decide)
        after = outcomes(new, rows, new.decide)
        if len(fresh := np.flatnonzero(~np.isin(new.known.labels, both.columns))):
            correct, (accept, _), *_ = outcomes(new, {"known": fresh}, new.decide)
            shares = f"accuracy {correct.mean():.1%}, {1 - accept.mean():.1%} of {len(fresh):,} samples rejected"
            both.notes.append(f"new classes, which are not compared: {shares}")
    labels = old.known.labels[both.rows["known"][0]]
    tasks = old.partition.column_tasks[labels]
    names = list(old.classes or [f"class {column}" for column in range(len(both.columns))])
    limits = (max_loss, alpha, max(max_loss, 5.0) if task_loss is None else task_loss)
    promises = isinstance(new.decision, Conformal) and new.threshold is None
    judged = judge(before, after, tasks, *limits, promise=new.alpha if promises else None)
    ways = []
    for name, prepare in _other_decisions(old, new, both).items():
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", UserWarning)
                changed = outcomes(new, rows, prepare())
            promise = None if name == "keep the threshold" else new.alpha
            ways.append(Way(name, judge(before, changed, tasks, *limits, promise=promise)))
        except ToodError as error:
            ways.append(Way(name, None, str(error)))
    grown = new.partition.columns > old.partition.columns  # an old decision rejects inputs of new classes
    passing = [way.name for way in ways if way.judged and way.judged.verdict != "block"]
    remedies = [name for name in passing if judged.blocking and not (grown and name == "keep the calibrator")]
    verdict: Verdict = "recalibrate" if remedies else judged.verdict
    by_task, by_class = by_group(before, after, tasks), by_group(before, after, labels, names)
    ids = np.asarray(old.ids.get("known", np.arange(len(old.known))))[both.rows["known"][0]]
    now_rejected = ids[before.known[0] & ~after.known[0]][:LISTED].tolist()
    return Gate(verdict, judged, by_task, by_class, ways, remedies, now_rejected, both.notes, max_loss, alpha)


def _other_decisions(old: Version, new: Version, both: Shared) -> dict[str, Callable[[], Decide]]:
    """The four ways to go on with the new model; each raises if it is not possible."""
    current = TOOD(**new.cal.get_params()) if isinstance(new.cal, TOOD) else TOOD(new.partition)
    other, name = TOOD([range(new.partition.columns)], variant="none", margin=0.0), "energy"
    if len(Partition(current.tasks)) == 1:  # energy is what is deployed
        other, name = TOOD(new.partition), "TOOD"

    def old_decision() -> Decide:
        if (both.columns < 0).any():
            raise ToodError("NEW lacks classes of OLD")
        return lambda outputs: old.decide(Outputs(outputs.logits[:, both.columns], outputs.features))

    def recalibrated(cal: TOOD) -> Decide:
        if new.calibration is None or new.calibration.labels is None:
            raise ToodError("needs calibration samples of NEW")
        decision = Conformal.cross(cal, new.calibration.logits, new.calibration.labels, folds=FOLDS)
        return replace(new, decision=decision, threshold=None).decide

    return {
        "keep the threshold": lambda: replace(new, threshold=old.limit).decide,
        "keep the calibrator": old_decision,
        "recalibrate": lambda: recalibrated(current),
        f"switch to {name}": lambda: recalibrated(other),
    }

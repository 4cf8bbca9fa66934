"""What an audit concludes, by one documented rule, and the words for it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from importlib import resources
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from tood.audit.evidence import Distances, Gap

__all__ = ["Cause", "Repair", "Verdict", "diagnose", "loss_error", "recommend"]

Cause: TypeAlias = Literal[
    "none",
    "confidence gap",
    "confidence gap and crowding",
    "confidence gap and lost features",
    "confidence gap, in part",
    "crowding",
    "lost features",
    "something else",
]

LOSS = 0.02  # AUROC: what is lost below this does not matter in practice
SHARE = 0.25  # of the loss: a mechanism that accounts for less is not the cause, what is left below it is not a rest
WITHIN = 0.10  # accuracy: where the task is given, nothing but worse features takes it away
GAIN = 0.005  # AUROC: a setting that is better by less is not worth choosing
PREFERRED = ("tood_joint", "tood_auto", "tood_robust_anchor")  # by what the runs in docs/results show, best first


def diagnose(
    lost: float,
    error: float,
    restored: float,
    within_task: float,
    by_distance: float | None = None,
    nearer: float = 0.0,
) -> Cause:
    """Why detection was lost.

    The test of the confidence gap is its cure: re-centre every task's channel on the test data's own statistics and
    see how much of the loss comes back. The rest is put down to the features where something shows it that no gap
    between tasks can: old tasks are told apart worse even within a task, so their features are lost; or the distance
    to the nearest ID sample no longer tells OOD from ID as it did. The latter is crowding if OOD has come nearer.
    (That alone is not enough: with every class that is added, the nearest one is nearer.)

    Parameters
    ----------
    lost:
        D_avg of energy, in AUROC.
    error:
        Its standard error. A loss below 0.02, or below twice its error, is none.
    restored:
        AUROC that perfect re-centring adds, mean over the tasks that can have been forgotten, at the last step.
        A quarter of the loss makes the gap a cause; three quarters make it the only one.
    within_task:
        What accuracy on old tasks lost where the task is given; 0.10 means that features are lost.
    by_distance:
        D_avg of the nearest distance; 0.02 and a quarter of the loss make the features a cause. None without features.
    nearer:
        The share by which OOD has come nearer to ID, in units of ID's own nearest distances.

    Examples
    --------
    >>> diagnose(lost=0.20, error=0.01, restored=0.18, within_task=0.0)
    'confidence gap'
    >>> diagnose(lost=0.20, error=0.01, restored=0.01, within_task=0.02, by_distance=0.15, nearer=0.3)
    'crowding'
    >>> diagnose(lost=0.20, error=0.01, restored=0.01, within_task=0.30, by_distance=0.15, nearer=0.3)
    'lost features'
    """
    if lost < max(LOSS, 2 * error):
        return "none"
    if restored >= (1 - SHARE) * lost:
        return "confidence gap"
    gap = restored >= SHARE * lost
    by_features = by_distance is not None and by_distance >= max(LOSS, SHARE * lost)
    if within_task >= WITHIN or (by_features and nearer <= 0):
        return "confidence gap and lost features" if gap else "lost features"
    if by_features:
        return "confidence gap and crowding" if gap else "crowding"
    return "confidence gap, in part" if gap else "something else"


def loss_error(before: Sequence[float], after: Sequence[float], id_counts: Sequence[int], ood_count: int) -> float:
    """The standard error of D_avg from the number of samples (Hanley and McNeil, 1982).

    Parameters
    ----------
    before, after:
        AUROC of each old task at its own step and at the last, ``[T-1]``.
    id_counts:
        Test samples of each of these tasks.
    ood_count:
        OOD samples. They are the same for every task, so averaging over tasks does not reduce their part.
    """
    if len(before) == 0:
        return 0.0
    a = np.array([before, after], dtype=np.float64)
    counts = np.asarray(id_counts, dtype=np.float64)
    from_ood = (a / (2 - a) - a**2) / ood_count
    from_id = (2 * a**2 / (1 + a) - a**2) / counts
    variance = from_ood.sum(axis=0).mean() + from_id.sum(axis=0).mean() / counts.size
    return float(np.sqrt(max(variance, 0.0)))


@dataclass(frozen=True)
class Repair:
    """One score on this run: Avg AUROC and D_avg, (near + far) / 2. No margin stands for the detector's own."""

    detector: str
    margin: float | None
    average: float
    forgetting: float

    @property
    def name(self) -> str:
        """``tood_robust_anchor, margin 0.5``."""
        return self.detector if self.margin is None else f"{self.detector}, margin {self.margin:g}"

    @property
    def logits_only(self) -> bool:
        """Is it a setting of TOOD, rather than a score that reads features?"""
        return self.detector not in ("tood_joint", "typicality")


def recommend(energy: float, repairs: Sequence[Repair]) -> Repair | None:
    """Which score to use; None for plain energy.

    One is worth it where the best adds half a point of Avg AUROC to energy. Then the first of :data:`PREFERRED` that
    was measured, at its own margin, is kept unless another is better by as much again: the choice is made on the very
    sets that are reported, so small leads mean nothing.
    """
    best = max(repairs, key=lambda repair: repair.average)
    if best.average < energy + GAIN:
        return None
    default = next((r for name in PREFERRED for r in repairs if (r.detector, r.margin) == (name, None)), best)
    return default if default.average >= best.average - GAIN else best


def supported_by(detector: str) -> str:
    """What the runs in docs/results say for a detector, in words; empty where they say nothing."""
    parts = [
        f"{found['above']} of {found['of']} runs on {stream} "
        f"({found['gain']:+.1f} points on average, {found['near']:+.1f} on near-OOD)"
        for stream, found in _supported()["detectors"].get(detector, {}).items()
    ]
    if not parts:
        return ""
    best = "above the best of energy and the paper's TOOD, picked with hindsight,"
    return f"{best} in {', '.join(parts)}: docs/results/past-tood.md"


@lru_cache
def _supported() -> dict[str, Any]:
    found: dict[str, Any] = json.loads((resources.files("tood.audit") / "supported.json").read_text())
    return found


@dataclass(frozen=True)
class Verdict:
    """The judgement on one run. Figures are fractions, not percent.

    Attributes
    ----------
    cause:
        What :func:`diagnose` found.
    tasks:
        How many tasks had been learned at the last step.
    forgetting, error, by_task:
        D_avg of energy, its standard error, and D_i of each task but the last.
    accuracy_forgetting, within_task:
        F̄, what accuracy lost meanwhile; and what it lost even where the task is given.
    average, restored:
        Avg AUROC of energy; what perfect re-centring adds to old tasks at the last step.
    gap, distances:
        The evidence; no distances without features.
    calibration:
        The source of the calibration set.
    repairs, recommended:
        Settings of TOOD, and scores that read features where there are any, on the calibration set at hand; and the one
        to use (None: plain energy).
    best:
        The detector with the highest Avg AUROC of all that were measured, and that.
    """

    cause: Cause
    tasks: int
    forgetting: float
    error: float
    by_task: tuple[float, ...]
    accuracy_forgetting: float
    within_task: float
    average: float
    restored: float
    gap: Gap
    distances: Distances | None
    calibration: str
    repairs: tuple[Repair, ...]
    recommended: Repair | None
    best: tuple[str, float]

    def sentences(self) -> list[str]:
        """The judgement in words: how much, which tasks, why, whether TOOD repairs it, and what to use."""
        if self.tasks == 1:
            return ["One task has been learned: there is nothing yet to forget."]
        return [self._how_much(), self._why(), self._repair(), self._advice()]

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        found = asdict(self)
        if self.distances is not None:
            found["distances"]["ratio"] = self.distances.ratio
        return {**found, "sentences": self.sentences()}

    def _how_much(self) -> str:
        order = np.argsort(-np.asarray(self.by_task), kind="stable")
        worst = [f"task {i} {_points(self.by_task[i])}" for i in order[:3] if self.by_task[i] >= LOSS]
        amount = f"{_points(self.forgetting)} ± {100 * self.error:.1f} points of AUROC (D_avg)"
        if self.cause == "none":
            text = f"Energy has hardly forgotten: {amount} over {self.tasks} tasks."
        else:
            text = f"Energy has lost {amount} between learning a task and the end of {self.tasks} tasks."
        if worst:
            text += f" {'Most' if self.cause != 'none' else 'The most'}: {', '.join(worst)}."
        whole, within = _fell(self.accuracy_forgetting), _fell(self.within_task)
        return f"{text} Accuracy on old tasks {whole} points meanwhile; where the task is given it {within}."

    def _why(self) -> str:
        energies = f"mean own-channel energies of the tasks run {_numbers(self.gap.test)} (oldest to latest)"
        share = 100 * self.restored / self.forgetting if self.forgetting > 0 else 0.0
        given = f"{_points(self.restored)} points, {share:.0f} % of the loss" if self.restored > 0 else "nothing"
        cure = f"re-centring them on the test data's own statistics gives back {given}"
        near = self._nearness()
        gone = f"accuracy fell by {_points(self.within_task)} even where the task is given"
        return {
            "none": f"There is no loss to explain; {energies}.",
            "confidence gap": f"It is the confidence gap: {energies}, and {cure}.",
            "confidence gap and crowding": f"It is both the confidence gap and crowding: {energies}, and {cure}; "
            f"the rest goes with crowding ({near}).",
            "confidence gap and lost features": f"It is the confidence gap and lost features: {energies}, and {cure}; "
            f"the rest goes with features of old tasks that are lost ({gone}; {near}).",
            "confidence gap, in part": f"Part of it is the confidence gap: {energies}, and {cure}. "
            f"The rest is not explained ({near}).",
            "crowding": f"It is crowding ({near}), not the confidence gap: {energies}, and {cure}.",
            "lost features": f"The features of old tasks are lost ({gone}; {near}); it is not the confidence gap: "
            f"{energies}, and {cure}.",
            "something else": f"It is not the confidence gap: {energies}, and {cure}. It is not explained ({near}).",
        }[self.cause]

    def _nearness(self) -> str:
        if self.distances is None:
            return "no features were given, so crowding cannot be told"
        ratio = self.distances.ratio
        return (
            f"by the features alone {_points(self.distances.lost)} points are lost; "
            f"OOD was {ratio[0]:.1f} times as far from ID as ID itself, and is {ratio[-1]:.1f} times"
        )

    def _repair(self) -> str:
        best = max((r for r in self.repairs if r.logits_only), key=lambda repair: repair.average)
        change = f"Avg AUROC {_points(self.average)} → {_points(best.average)} with {best.name}"
        change += f", D_avg {_points(self.forgetting)} → {_points(best.forgetting)}"
        gain = best.average - self.average
        if gain >= GAIN:
            repaired = "confidence gap" in self.cause and best.forgetting < 0.5 * self.forgetting
            text = f"TOOD {'repairs it' if repaired else 'helps'} here: {change}."
        else:
            text = f"TOOD does not help here: {change}."
        if self.hides_gap():
            text += (
                f" The calibration set ({self.calibration}) hides the gap: its energies run "
                f"{_numbers(self.gap.calibration)}; samples that were never trained on would show it."
            )
        return text

    def _advice(self) -> str:
        if self.recommended is None:
            text = "Use plain energy: nothing that calibrates it adds half a point."
        else:
            used = self.recommended
            why = f"Avg AUROC {_points(self.average)} → {_points(used.average)} here"
            if used.margin is not None or used.detector not in PREFERRED:
                why += ", chosen on these very OOD sets, so expect a little less on others"
            support = supported_by(used.detector) if used.margin is None else ""
            text = f"Use {used.name}: {why}{'; ' * bool(support)}{support}."
        detector, average = self.best
        reached = max(self.average, self.recommended.average if self.recommended else 0.0)
        if average >= reached + GAIN:
            text += f" Of all detectors measured {detector} does best: Avg AUROC {_points(average)}."
        return text

    def hides_gap(self) -> bool:
        """Do calibration samples show less than half of the gap that test samples show?"""
        seen, there = Gap.of_old(self.gap.calibration), Gap.of_old(self.gap.test)
        return there >= 0.5 * self.gap.spread and seen < 0.5 * there


def _points(value: float) -> str:
    return f"{100 * value:.1f}"


def _fell(loss: float) -> str:
    return f"{'fell' if loss >= 0 else 'rose'} by {_points(abs(loss))}"


def _numbers(values: Sequence[float] | npt.NDArray[Any]) -> str:
    """At most six of them, evenly spread."""
    shown = np.asarray(values)
    if len(shown) > 6:
        shown = shown[np.linspace(0, len(shown) - 1, 6).round().astype(int)]
    return " ".join(f"{value:.1f}" for value in shown)

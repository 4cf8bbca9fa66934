"""What the paper says of causes, checked on runs as they were kept: drift, the confidence gap, crowding (CIFAR-10)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from results_pages.agreement import Claim, enough, is_most
from tood.arrays import Float64Array
from tood.metrics import correlation
from tood.paper.collect import Collected
from tood.paper.reference import table_rows
from tood.report.appearance import label
from tood.report.gather import Measured
from tood.report.summary import learner_label, on_its_own, run_figures
from tood.report.tables import LEARNERS

__all__ = ["Relation", "mechanism_claims", "relation"]

STREAM = "cifar10"  # that the paper's figures on causes are of
SHOWN = "icarl"  # the learner that they show
STRONG = 0.7  # a correlation that must be ruled out before "does not go along" holds


class Relation(NamedTuple):
    """Pearson's r over learners, a learner being one point; what remains of it without any one of them."""

    r: float
    p: float
    learners: int
    lowest: float
    highest: float

    @property
    def sign(self) -> int | None:
        """1 or -1 where the 95 % interval leaves out 0 with all learners and without any one; 0 where it rules out a
        strong relation; None where it is too wide to tell.
        """
        without = [_interval(r, self.learners - 1) for r in (self.lowest, self.highest)]
        low, high = _interval(self.r, self.learners)
        if min(low, *(interval[0] for interval in without)) > 0:
            return 1
        if max(high, *(interval[1] for interval in without)) < 0:
            return -1
        return 0 if max(-low, high) < STRONG else None

    def __str__(self) -> str:
        without = f"{self.lowest:.2f} to {self.highest:.2f} without any one"
        return f"r = {self.r:.2f} ({without}), p = {self.p:.3f}, {self.learners} learners"


def mechanism_claims(own: Sequence[Collected]) -> Iterator[Claim]:
    """The claims of the figures cka, main_panel, whisker and nn_distance, and the abstract's about accuracy.

    Parameters
    ----------
    own:
        Runs of one preset; those of other streams are passed over.
    """
    # BER and other networks aside: the former has its learner's features, the latter are no other learners.
    own = [one for one in own if one.run.stream == STREAM and on_its_own(learner_label(one.run))]
    known = {row["finding"]: row["value"] for row in table_rows("findings.csv")}
    yield from _relations(own, known)
    learners = {name: found for name in LEARNERS if (found := [o for o in own if learner_label(o.run) == name])}
    yield from _first_task(learners, known)
    yield from _energies(learners, known)
    yield from _crowding(learners, known)


def relation(points: Iterable[Mapping[str, Any]], one: str, other: str) -> Relation | None:
    """How two figures that points have, such as ``"drift"`` and ``"d_avg"``, go along over learners.

    A learner is one point, the mean over its seeds. None with fewer than four learners, or where one is constant.
    """
    by_learner: dict[str, list[tuple[float, float]]] = {}
    for point in points:
        if point.get(one) is not None and point.get(other) is not None:
            by_learner.setdefault(point["learner"], []).append((point[one], point[other]))
    means = np.array([np.mean(pairs, axis=0) for pairs in by_learner.values()])
    if len(means) < 4:
        return None
    parts = [means, *(np.delete(means, place, axis=0) for place in range(len(means)))]
    if any(np.ptp(part, axis=0).min() == 0 for part in parts):
        return None
    (r, p), *without = (correlation(*part.T) for part in parts)
    rest = [found[0] for found in without]
    return Relation(r, p, len(means), min(rest), max(rest))


def _interval(r: float, count: int) -> tuple[float, float]:
    """95 % by Fisher's transformation."""
    if count < 4:
        return -1.0, 1.0
    middle, reach = np.arctanh(np.clip(r, -1 + 1e-12, 1 - 1e-12)), 1.96 / np.sqrt(count - 3)
    return float(np.tanh(middle - reach)), float(np.tanh(middle + reach))


def _relations(own: Sequence[Collected], known: Mapping[str, str]) -> Iterator[Claim]:
    """What goes along with what, over learners: ``True`` where the paper sees a relation, ``False`` where none."""
    points = [one.point | _severity(one) | _of_features(one) for one in own]
    r_d, p_d, r_f, p_f = (known[f"drift and {name}: {letter}"] for name in ("D_avg", "F_avg") for letter in "rp")
    old = "does not go along with accuracy on old tasks"
    stated = (
        ("drift", "d_avg", False, "feature drift does not go along with OOD forgetting D_avg", f"r = {r_d}, p = {p_d}"),
        ("drift", "f_avg", True, "feature drift goes along with accuracy forgetting", f"r = {r_f}, p < {p_f}"),
        ("old_accuracy", "d_avg", False, f"OOD forgetting of energy {old}", "weakly"),
        ("old_accuracy", "mds_d_avg", False, f"OOD forgetting of MDS {old}", "weakly"),
        ("closed", "gain", True, "TOOD gains most where task 0's energy came nearest to OOD's", "said"),
    )
    for one, other, expected, text, theirs in stated:
        found = relation(points, one, other)
        sign = None if found is None else found.sign
        holds = None if sign is None else (sign == 1 if expected else sign == 0)
        yield Claim(f"{STREAM}: {text}", theirs, str(found or "too few learners"), holds)


def _severity(one: Collected) -> dict[str, float]:
    """``closed``: the share of the gap between task 0's and OOD's mean energy that is gone, mean over later steps."""
    if not one.along or len(one.along["task0_energy"]) < 2:
        return {}
    gap = np.subtract(one.along["task0_energy"], one.along["ood_energy"])
    return {"closed": float(1 - gap[1:].mean() / gap[0])}


def _of_features(one: Collected) -> dict[str, float]:
    value = run_figures(one.table, one.run.calibration).get(("mds", "d_avg")) if one.table is not None else None
    return {} if value is None else {"mds_d_avg": value}


def _first_task(learners: Mapping[str, Sequence[Collected]], known: Mapping[str, str]) -> Iterator[Claim]:
    """Task 0 keeps its accuracy and loses its AUROC; TOOD gives most of that back."""
    lost = {}
    for learner, seeds in learners.items():
        measured = [Measured(one.run) for one in seeds]
        accuracy = 100 * _mean(one.accuracy[:, 0] for one in measured)
        plain, calibrated = (
            100 * _mean(one.trajectory(name).balanced().mean()[:, 0] for one in measured)
            for name in ("energy", "tood_robust_anchor")
        )
        lost[learner] = bool(plain[0] - plain[-1] > accuracy[0] - accuracy[-1])
        if learner == SHOWN:
            text = f"{STREAM}, {label(SHOWN)}: task 0 loses more AUROC of energy than accuracy"
            theirs = f"AUROC -{known['task 0: AUROC of energy lost']}, accuracy stays high"
            ours = f"AUROC {_way(plain, 1)}, lowest {plain.min():.1f}; accuracy {_way(accuracy, 1)}"
            yield Claim(text, theirs, ours, lost[learner])
            gone, back = float((plain[0] - plain).sum()), float((calibrated - plain).sum())
            text = f"{STREAM}, {label(SHOWN)}: TOOD (robust anchor) gives most of that AUROC back, all steps together"
            share = f"{back / gone:.0%}" if gone > 0 else "nothing was lost"
            yield Claim(text, "most", share, back > gone / 2 if gone > 0 else None)
    if lost:
        text = f"{STREAM}: task 0 loses more AUROC of energy than accuracy, with most learners"
        yield Claim(text, "said", f"{sum(lost.values())} of {len(lost)}", enough(lost, is_most(lost.values())))


def _energies(learners: Mapping[str, Sequence[Collected]], known: Mapping[str, str]) -> Iterator[Claim]:
    """Task 0's energy sinks to that of OOD, which stays where it is."""
    sinks, closes, closed = {}, {}, {}
    for learner, seeds in learners.items():
        if not all(one.along for one in seeds):
            continue
        energy, ood = (_mean(one.along[name] for one in seeds) for name in ("task0_energy", "ood_energy"))
        gap = energy - ood
        sinks[learner] = bool(energy[-1] < energy[0])
        closes[learner] = bool(gap[1:].mean() < gap[0] / 2)
        closed[learner] = bool(gap[-1] < gap[0] / 2)
        if learner == SHOWN:
            text = f"{STREAM}, {label(SHOWN)}: the mean energy of task 0 sinks to that of OOD"
            first, last = (known[f"task 0: mean energy, {when} step"] for when in ("first", "last"))
            theirs = f"{first} to {last}, OOD within {known['task 0: mean energy of OOD']}"
            ours = f"{_way(energy, 1)}, OOD within {ood.min():.1f} to {ood.max():.1f}"
            yield Claim(text, theirs, ours, sinks[learner] and closed[learner])
    if sinks:
        text = f"{STREAM}: task 0's mean energy falls, with every learner"
        yield Claim(text, "4 of 4", f"{sum(sinks.values())} of {len(sinks)}", _every(sinks))
        text = f"{STREAM}: what task 0's mean energy lies above OOD's halves at least, with every learner"
        ours = f"{sum(closes.values())} of {len(closes)} over later steps, {sum(closed.values())} at the last"
        yield Claim(text, "4 of 4", ours, _every(closes))


def _crowding(learners: Mapping[str, Sequence[Collected]], known: Mapping[str, str]) -> Iterator[Claim]:
    """OOD samples come nearer to ID ones in feature space."""
    nearer: dict[str, dict[str, bool]] = {"nearest": {}, "distance_ratio": {}}
    for learner, seeds in learners.items():
        for name in nearer:
            if all(name in one.along for one in seeds):
                along = _mean(one.along[name] for one in seeds)
                nearer[name][learner] = bool(along[-1] < along[0])
                if learner == SHOWN and name == "nearest":
                    paper = np.array(
                        [float(known[f"OOD to its nearest ID sample, {w} step"]) for w in ("first", "last")]
                    )
                    text = f"{STREAM}, {label(SHOWN)}: SVHN comes nearer to ID samples in feature space (median)"
                    theirs, ours = (f"{_way(x, 2)} ({x[-1] / x[0] - 1:+.0%})" for x in (paper, along))
                    yield Claim(text, theirs, ours, nearer[name][learner])
    units = {
        "nearest": "SVHN comes nearer to ID samples",
        "distance_ratio": "OOD comes nearer to ID samples in units of their own distances",
    }
    for name, words in units.items():
        if nearer[name]:
            found = nearer[name]
            count = f"{sum(found.values())} of {len(found)}"
            text = f"{STREAM}: {words}, with most learners"
            yield Claim(text, "said", count, enough(found, is_most(found.values())))


def _every(found: Mapping[str, bool]) -> bool | None:
    """Whether something is so with every learner; None where they are too few and no exception was seen."""
    return enough(found, True) if all(found.values()) else False


def _way(values: Float64Array, digits: int) -> str:
    """``8.1 to 4.1``: from the first to the last."""
    return f"{values[0]:.{digits}f} to {values[-1]:.{digits}f}"


def _mean(seeds: Iterable[Any]) -> Float64Array:
    found: Float64Array = np.mean([np.asarray(values, dtype=np.float64) for values in seeds], axis=0)
    return found

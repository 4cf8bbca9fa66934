"""The paper's claims about causes on CIFAR-10 (drift, confidence gap, crowding), checked on collected runs."""

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

__all__ = ["STREAM", "Relation", "claims_about_causes", "interval", "mechanism_claims", "point_of", "relation"]

STREAM = "cifar10"  # the stream of the paper's figures on causes
SHOWN = "icarl"  # the learner in these figures
NEARER = 0.95  # a distance has shrunk if it is below this share of the first, as in the audit
STRONG = 0.7  # a claim of no correlation holds if a stronger one is excluded


class Relation(NamedTuple):
    """Pearson's r over learners, one point per learner, and its range when any one learner is left out."""

    r: float
    p: float
    learners: int
    lowest: float
    highest: float

    @property
    def sign(self) -> int | None:
        """1 or -1 if the 95 % interval excludes 0, also without any one learner; 0 if it excludes a strong correlation;
        None if it is too wide to judge.
        """
        without = [interval(r, self.learners - 1) for r in (self.lowest, self.highest)]
        low, high = interval(self.r, self.learners)
        if min(low, *(ends[0] for ends in without)) > 0:
            return 1
        if max(high, *(ends[1] for ends in without)) < 0:
            return -1
        return 0 if max(-low, high) < STRONG else None

    def __str__(self) -> str:
        without = f"{self.lowest:.2f} to {self.highest:.2f} leaving one out"
        p = "p < 0.001" if self.p < 0.001 else f"p = {self.p:.3f}"
        return f"r = {self.r:.2f} ({without}), {p}, {self.learners} learners"


def mechanism_claims(own: Sequence[Collected]) -> Iterator[Claim]:
    """Claims of the figures cka, main_panel, whisker and nn_distance, and the abstract's claim about accuracy.

    Parameters
    ----------
    own:
        Runs of one preset; those of other streams are ignored.
    """
    # Without BER, whose features are those of its learner, and without runs with another network.
    own = [one for one in own if one.run.stream == STREAM and on_its_own(learner_label(one.run))]
    learners = {name: seeds for name in LEARNERS if (seeds := [o for o in own if learner_label(o.run) == name])}
    yield from claims_about_causes([point_of(one) for one in own], learners)


def claims_about_causes(
    points: Sequence[Mapping[str, Any]], learners: Mapping[str, Sequence[Collected]]
) -> Iterator[Claim]:
    """The claims, from the points of all runs and the collected runs of the paper's learners."""
    known = {row["finding"]: row["value"] for row in table_rows("findings.csv")}
    yield from _relations(points, known)
    yield from _first_task(learners, known)
    yield from _energies(learners, known)
    yield from _crowding(learners, known)


def relation(points: Iterable[Mapping[str, Any]], one: str, other: str) -> Relation | None:
    """Correlation over learners of two values of the points, such as ``"drift"`` and ``"d_avg"``.

    A learner is one point, the mean over its seeds. None with fewer than four learners, or if a value is constant.
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
    rest = [r_without for r_without, _ in without]
    return Relation(r, p, len(means), min(rest), max(rest))


def interval(r: float, count: int) -> tuple[float, float]:
    """95 % confidence interval of a correlation over ``count`` points, by Fisher's transformation."""
    if count < 4:
        return -1.0, 1.0
    middle, reach = np.arctanh(np.clip(r, -1 + 1e-12, 1 - 1e-12)), 1.96 / np.sqrt(count - 3)
    return float(np.tanh(middle - reach)), float(np.tanh(middle + reach))


def point_of(one: Collected) -> dict[str, Any]:
    """The point of a run in figures over learners, with the loss of its lead over OOD and the forgetting of MDS."""
    return one.point | _severity(one) | _of_features(one)


def _relations(points: Sequence[Mapping[str, Any]], known: Mapping[str, str]) -> Iterator[Claim]:
    """Claims about correlations over learners; the third entry says whether the paper sees one."""
    r_d, p_d, r_f, p_f = (known[f"drift and {name}: {letter}"] for name in ("D_avg", "F_avg") for letter in "rp")
    old = "does not correlate with accuracy on old tasks"
    stated = (
        (
            "drift",
            "d_avg",
            False,
            "feature drift does not correlate with OOD forgetting D_avg",
            f"r = {r_d}, p = {p_d}",
        ),
        ("drift", "f_avg", True, "feature drift correlates with accuracy forgetting", f"r = {r_f}, p < {p_f}"),
        ("old_accuracy", "d_avg", False, f"OOD forgetting of energy {old}", "weakly"),
        ("old_accuracy", "mds_d_avg", False, f"OOD forgetting of MDS {old}", "weakly"),
        ("closed", "gain", True, "TOOD gains most if task 0's energy came closest to OOD's", "stated"),
    )
    for one, other, expected, text, theirs in stated:
        ours = relation(points, one, other)
        sign = None if ours is None else ours.sign
        holds = None if sign is None else (sign == 1 if expected else sign == 0)
        yield Claim(f"{STREAM}: {text}", theirs, str(ours or "measured with too few learners"), holds)


def _severity(one: Collected) -> dict[str, float]:
    """``closed``: share of the gap between the mean energies of task 0 and OOD that is lost, mean over later steps."""
    if not one.along or len(one.along["task0_energy"]) < 2:
        return {}
    gap = np.subtract(one.along["task0_energy"], one.along["ood_energy"])
    return {"closed": float(1 - gap[1:].mean() / gap[0])}


def _of_features(one: Collected) -> dict[str, float]:
    value = run_figures(one.table, one.run.calibration).get(("mds", "d_avg")) if one.table is not None else None
    return {} if value is None else {"mds_d_avg": value}


def _first_task(learners: Mapping[str, Sequence[Collected]], known: Mapping[str, str]) -> Iterator[Claim]:
    """Claims: task 0 keeps its accuracy and loses its AUROC; TOOD restores most of it."""
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
            text = f"{STREAM}, {label(SHOWN)}: TOOD (robust anchor) restores most of that AUROC, summed over steps"
            share = f"{back / gone:.0%}" if gone > 0 else "over all steps together nothing was lost"
            yield Claim(text, "most", share, back > gone / 2 if gone > 0 else None)
    if lost:
        text = f"{STREAM}: task 0 loses more AUROC of energy than accuracy, with most learners"
        yield Claim(text, "stated", f"{sum(lost.values())} of {len(lost)}", enough(lost, is_most(lost.values())))


def _energies(learners: Mapping[str, Sequence[Collected]], known: Mapping[str, str]) -> Iterator[Claim]:
    """Claims: the energy of task 0 falls to that of OOD, which does not change."""
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
            text = f"{STREAM}, {label(SHOWN)}: the mean energy of task 0 falls to that of OOD"
            first, last = (known[f"task 0: mean energy, {when} step"] for when in ("first", "last"))
            theirs = f"{first} to {last}, OOD within {known['task 0: mean energy of OOD']}"
            ours = f"{_way(energy, 1)}, OOD within {ood.min():.1f} to {ood.max():.1f}"
            yield Claim(text, theirs, ours, sinks[learner] and closed[learner])
    if sinks:
        text = f"{STREAM}: task 0's mean energy falls, with every learner"
        yield Claim(text, "4 of 4", f"{sum(sinks.values())} of {len(sinks)}", _every(sinks))
        text = f"{STREAM}: the lead of task 0's mean energy over OOD's at least halves, with every learner"
        ours = f"{sum(closes.values())} of {len(closes)} over later steps, {sum(closed.values())} at the last"
        yield Claim(text, "4 of 4", ours, _every(closes))


def _crowding(learners: Mapping[str, Sequence[Collected]], known: Mapping[str, str]) -> Iterator[Claim]:
    """Claims: OOD samples come closer to ID samples in feature space."""
    nearer: dict[str, dict[str, bool]] = {"nearest": {}, "distance_ratio": {}}
    for learner, seeds in learners.items():
        for name in nearer:
            if all(name in one.along for one in seeds):
                along = _mean(one.along[name] for one in seeds)
                nearer[name][learner] = bool(along[-1] < NEARER * along[0])
                if learner == SHOWN and name == "nearest":
                    names = (f"OOD to its nearest ID sample, {when} step" for when in ("first", "last"))
                    paper = np.array([float(known[finding]) for finding in names])
                    text = f"{STREAM}, {label(SHOWN)}: SVHN comes closer to ID samples in feature space (median)"
                    theirs, ours = (f"{_way(x, 2)} ({x[-1] / x[0] - 1:+.0%})" for x in (paper, along))
                    yield Claim(text, theirs, ours, nearer[name][learner])
    units = {
        "nearest": "SVHN comes closer to ID samples",
        "distance_ratio": "OOD comes closer to ID samples in units of their own distances",
    }
    for name, words in units.items():
        if nearer[name]:
            closer = nearer[name]
            count = f"{sum(closer.values())} of {len(closer)}"
            text = f"{STREAM}: {words}, with most learners"
            yield Claim(text, "stated", count, enough(closer, is_most(closer.values())))


def _every(holds: Mapping[str, bool]) -> bool | None:
    """Whether something holds for every learner; None if it does but they are too few."""
    return enough(holds, True) if all(holds.values()) else False


def _way(values: Float64Array, digits: int) -> str:
    """``8.1 to 4.1``: the first value and the last."""
    return f"{values[0]:.{digits}f} to {values[-1]:.{digits}f}"


def _mean(seeds: Iterable[Any]) -> Float64Array:
    mean: Float64Array = np.mean([np.asarray(values, dtype=np.float64) for values in seeds], axis=0)
    return mean

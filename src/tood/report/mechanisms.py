"""What the paper says of causes, checked on runs as they were kept: drift, the confidence gap, crowding (CIFAR-10)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from tood.arrays import Float64Array
from tood.metrics import correlation
from tood.report.agreement import Claim
from tood.report.collect import Collected
from tood.report.gather import Measured
from tood.report.summary import learner_label, on_its_own, paper_rows
from tood.report.tables import LEARNERS

__all__ = ["mechanism_claims", "relation"]

STREAM = "cifar10"  # that all of the paper's figures on causes are of
SHOWN = "icarl"  # the learner that they show
ENOUGH = 8  # learners, below which not seeing a relation shows nothing


def mechanism_claims(own: Sequence[Collected]) -> Iterator[Claim]:
    """The claims of the figures cka, main_panel, whisker and nn_distance, and the abstract's about accuracy.

    Parameters
    ----------
    own:
        Runs of one preset; those of other streams are passed over.
    """
    # BER and other networks aside: the former has its learner's features, the latter are no other learners.
    own = [one for one in own if one.run.stream == STREAM and on_its_own(learner_label(one.run))]
    known = {row["finding"]: row["value"] for row in paper_rows("findings.csv")}
    yield from _relations([one.point for one in own], known)
    yield from _sinking(own)
    shown = [one for one in own if learner_label(one.run) == SHOWN]
    if shown:
        yield from _first_task(shown, known)
        yield from _crowding(shown, known)


def relation(points: Iterable[Mapping[str, Any]], one: str, other: str) -> tuple[float, float, int] | None:
    """Pearson's r and p of two figures that points have, such as ``"drift"`` and ``"d_avg"``, and how many learners.

    A learner is one point, the mean over its seeds. None with fewer than three learners.
    """
    by_learner: dict[str, list[tuple[float, float]]] = {}
    for point in points:
        if point.get(one) is not None and point.get(other) is not None:
            by_learner.setdefault(point["learner"], []).append((point[one], point[other]))
    means = [[sum(column) / len(pairs) for column in zip(*pairs, strict=True)] for pairs in by_learner.values()]
    x, y = ([mean[k] for mean in means] for k in (0, 1))
    if len(means) < 3 or len(set(x)) == 1 or len(set(y)) == 1:
        return None
    return (*correlation(x, y), len(means))


def _relations(points: Sequence[Mapping[str, Any]], known: Mapping[str, str]) -> Iterator[Claim]:
    """Feature drift goes along with accuracy forgetting alone; OOD forgetting goes along with neither."""
    r_d, p_d, r_f, p_f = (known[f"drift and {name}: {letter}"] for name in ("D_avg", "F_avg") for letter in "rp")
    stated = (
        ("drift", "d_avg", False, "feature drift does not go along with OOD forgetting D_avg", f"r = {r_d}, p = {p_d}"),
        ("drift", "f_avg", True, "feature drift goes along with accuracy forgetting", f"r = {r_f}, p < {p_f}"),
        ("old_accuracy", "d_avg", False, "OOD forgetting D_avg does not go along with accuracy on old tasks", "weakly"),
    )
    for one, other, expected, text, theirs in stated:
        found = relation(points, one, other)
        if found is None:
            yield Claim(f"{STREAM}: {text}", theirs, "cannot be told", None)
            continue
        r, p, count = found
        related = p < 0.05 and (r > 0 or not expected)
        # Where it is not seen among few learners, it may be there all the same.
        holds = None if not related and count < ENOUGH else related == expected
        yield Claim(f"{STREAM}: {text}", theirs, f"r = {r:.2f}, p = {p:.3f}, {count} learners", holds)


def _sinking(own: Sequence[Collected]) -> Iterator[Claim]:
    """Task 0's energy comes nearer to that of OOD samples along the stream, whatever the learner."""
    gaps = {}
    for learner in LEARNERS:
        seeds = [one for one in own if learner_label(one.run) == learner and one.along]
        if seeds:
            gaps[learner] = _mean(np.subtract(one.along["task0_energy"], one.along["ood_energy"]) for one in seeds)
    if gaps:
        less = sum(gap[-1] < gap[0] for gap in gaps.values())
        text = f"{STREAM}: task 0's mean energy comes nearer to that of OOD, with every learner"
        yield Claim(text, "4 of 4", f"{less} of {len(gaps)}", less == len(gaps) if len(gaps) > 2 else None)


def _first_task(shown: Sequence[Collected], known: Mapping[str, str]) -> Iterator[Claim]:
    """Task 0 keeps its accuracy and loses its AUROC; TOOD gives most of that back."""
    measured = [Measured(one.run) for one in shown]
    accuracy = _mean(one.accuracy[:, 0] for one in measured)
    plain, calibrated = (
        _mean(one.trajectory(name).balanced().mean()[:, 0] for one in measured)
        for name in ("energy", "tood_robust_anchor")
    )
    text = f"{STREAM}, {SHOWN}: task 0 loses more AUROC of energy than accuracy"
    theirs = f"AUROC -{known['task 0: AUROC of energy lost']}, accuracy stays high"
    ours = f"AUROC {_way(100 * plain, 1)}, lowest {100 * plain.min():.1f}; accuracy {_way(100 * accuracy, 1)}"
    yield Claim(text, theirs, ours, bool(plain[0] - plain[-1] > accuracy[0] - accuracy[-1]))
    text = f"{STREAM}, {SHOWN}: TOOD (robust anchor) gives back most of the AUROC that task 0 lost, all steps together"
    lost, back = float((plain[0] - plain).sum()), float((calibrated - plain).sum())
    yield Claim(
        text, "most", f"{back / lost:.0%}" if lost > 0 else "nothing lost", back > lost / 2 if lost > 0 else None
    )
    if all(one.along for one in shown):
        energy, ood = (_mean(one.along[name] for one in shown) for name in ("task0_energy", "ood_energy"))
        text = f"{STREAM}, {SHOWN}: the mean energy of task 0 sinks to that of OOD"
        first, last = (known[f"task 0: mean energy, {when} step"] for when in ("first", "last"))
        ours = f"{_way(energy, 1)}, OOD {_way(ood, 1)}"
        sinks = energy[-1] < energy[0] and energy[-1] - ood[-1] < (energy[0] - ood[0]) / 2
        yield Claim(text, f"{first} to {last}, OOD 6 to 8", ours, bool(sinks))


def _crowding(shown: Sequence[Collected], known: Mapping[str, str]) -> Iterator[Claim]:
    """OOD samples come nearer to ID ones in feature space."""
    if not all("nearest" in one.along for one in shown):
        return
    nearest = _mean(one.along["nearest"] for one in shown)
    paper = np.array([float(known[f"OOD to its nearest ID sample, {when} step"]) for when in ("first", "last")])
    text = f"{STREAM}, {SHOWN}: SVHN comes nearer to ID samples in feature space (median of the nearest)"
    theirs, ours = (f"{_way(values, 2)} ({values[-1] / values[0] - 1:+.0%})" for values in (paper, nearest))
    yield Claim(text, theirs, ours, bool(nearest[-1] < nearest[0]))


def _way(values: Float64Array, digits: int) -> str:
    """``8.1 to 4.1``: from the first to the last."""
    return f"{values[0]:.{digits}f} to {values[-1]:.{digits}f}"


def _mean(seeds: Iterable[Any]) -> Float64Array:
    found: Float64Array = np.mean([np.asarray(values, dtype=np.float64) for values in seeds], axis=0)
    return found

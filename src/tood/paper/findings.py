"""The paper's questions about the parts of TOOD, answered from the rows of ablations."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np

__all__ = ["ENOUGH", "PRIMARY", "SETTLED", "Finding", "differences", "findings", "over_seeds"]

Row: TypeAlias = dict[str, Any]
Rows: TypeAlias = dict[str, list[Row]]
PRIMARY = "tood_robust_anchor"
SETTLED = 0.5  # points: B is enough if the mean stays this close to the mean with the full stored set
ENOUGH = "settled by B = 100, share of settings"
WHO = ("stream", "learner", "preset", "seed")  # the columns that identify a run; without a seed, a setting
VALUES = ("avg_auroc", "near_auroc", "far_auroc", "d_avg", "gain", "gain_low", "gain_high", "low", "high")


class Finding(NamedTuple):
    """What was found: one value per setting. ``learner`` is empty if it is about all learners."""

    name: str
    learner: str
    values: list[float]


def findings(rows: Rows) -> Iterator[Finding]:
    """Answers to the paper's questions."""
    yield from _mechanisms(rows.get("mechanism", []))
    yield from _partitions(rows.get("partition", []))
    yield from _buffers(rows.get("buffer", []))
    yield from _margins([row for row in rows.get("margin", []) if row["detector"] == PRIMARY])
    for reference in ("oldest", "widest", "mean"):
        moved = differences(
            rows.get("anchor", []), {"reference": reference}, {"reference": "latest"}, "detector", largest=True
        )
        yield Finding(f"anchor: {reference}", "", moved)
    sources = dict.fromkeys(row["calibration"] for row in rows.get("source", []))
    for source in sources:
        if source != "train" and "train" in sources:
            changes = differences(rows["source"], {"calibration": source}, {"calibration": "train"}, "detector")
            yield Finding(f"calibrated on {source}, not train", "", changes)


def _mechanisms(rows: Sequence[Row]) -> Iterator[Finding]:
    for name in ("maximum of task energies", "temperature", "tood_prototype", PRIMARY, "tood_mean_shift"):
        yield Finding(name, "", [row["gain"] for row in rows if row["mechanism"] == name])


def _partitions(rows: Sequence[Row]) -> Iterator[Finding]:
    for split in ("2", "3", "singletons"):
        for rule, words in (("group", ""), ("task", ", task rule")):
            changes = differences(rows, {"split": split, "statistics": rule}, {"split": "1"}, "detector")
            yield Finding(f"split by {split}{words}", "", changes)


def _buffers(rows: Sequence[Row]) -> Iterator[Finding]:
    herding, settled = [], []
    for own in by_setting(rows).values():
        sizes = sorted({row["B"] for row in own})
        # At the largest B both selections are the full stored set, so they are compared at the second largest.
        below = [row for row in own if len(sizes) > 1 and row["B"] == sizes[-2]]
        herding += differences(below, {"selection": "herding"}, {"selection": "random"})
        if own[0] in as_in_the_paper(rows):
            settled.append(float(_enough(own, sizes) <= 100))
    yield Finding("herding", "", herding)
    yield Finding(ENOUGH, "", settled)


def _enough(own: Sequence[Row], sizes: Sequence[int]) -> float:
    """The smallest B from which on the mean over draws is settled; infinite if only the full set is."""
    drawn = [row for row in own if row["selection"] == "random"]
    means = [np.mean([row["avg_auroc"] for row in drawn if row["B"] == size]) for size in sizes]
    first = len(sizes)
    while first and abs(means[first - 1] - means[-1]) <= SETTLED:
        first -= 1
    return sizes[first] if first < len(sizes) - 1 else float("inf")


def _margins(rows: Sequence[Row]) -> Iterator[Finding]:
    rows = as_in_the_paper(rows)
    for learner in dict.fromkeys(row["learner"] for row in rows):
        own = [row for row in rows if row["learner"] == learner]
        yield Finding("margin 0.5", learner, differences(own, {"margin": 0.5}, {"margin": 0.0}))


def as_in_the_paper(rows: Sequence[Row]) -> Sequence[Row]:
    """The rows of CIFAR-10, as in the paper's values of λ and B; all rows if there are none."""
    return [row for row in rows if row["stream"] == "cifar10"] or rows


def by_setting(rows: Iterable[Row]) -> dict[tuple[Any, ...], list[Row]]:
    """The rows of each setting: stream, learner and preset, and seed if they are not averaged over seeds."""
    groups: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        groups.setdefault(tuple(row.get(name) for name in WHO), []).append(row)
    return groups


def over_seeds(rows: Sequence[Row]) -> list[Row]:
    """Rows that differ only in run and seed become one row with the mean of each value."""
    groups: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        case = {name: value for name, value in row.items() if name not in ("run", "seed", *VALUES)}
        groups.setdefault(tuple(case.items()), []).append(row)
    return [
        dict(case) | {name: float(np.mean([row[name] for row in seeds])) for name in VALUES if name in seeds[0]}
        for case, seeds in groups.items()
    ]


def differences(rows: Iterable[Row], after: Row, before: Row, within: str = "", largest: bool = False) -> list[float]:
    """Per setting: mean avg_auroc of the rows that match ``after`` minus the mean of those that match ``before``.

    Only rows with the same value of ``within`` are compared; the result is the mean over these values, or with
    ``largest`` the largest absolute change.
    """
    found = []
    for own in by_setting(rows).values():
        changes = []
        for value in dict.fromkeys(row.get(within) for row in own):
            alike = [row for row in own if row.get(within) == value]
            pair = [[row["avg_auroc"] for row in alike if row.items() >= case.items()] for case in (after, before)]
            if all(pair):
                changes.append(float(np.mean(pair[0]) - np.mean(pair[1])))
        if changes:
            found.append(max(map(abs, changes)) if largest else float(np.mean(changes)))
    return found

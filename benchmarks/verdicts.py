"""How often the audit names the right cause: simulated runs whose causes are known.

    python benchmarks/verdicts.py [--seeds 5] [--first 30000] [--verbose]

Every class has an axis in feature space and the head reads it. Mechanisms are switched on one by one or together. The
truth comes from a run with ten times as many samples. The confidence gap is a cause if giving every channel the same
level there takes away at least a quarter of the loss; another mechanism is, if switching it off takes away a quarter
more. What two mechanisms do only together may be put down to either.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from tood import Partition
from tood.audit import audit
from tood.audit.verdict import Verdict
from tood.energy import energy, task_energies
from tood.metrics import auroc
from tood.outputs import Run, write_manifest, write_step

CAUSES = {"gap": "confidence gap", "crowding": "crowding", "fading": "lost features", "dead": "dead channels"}
GROUPS = {"near_a": "near", "far_a": "far", "far_b": "far"}
FIRST = 30_000  # the first seed by default; the rule was developed on seeds below
OFFSET = {"near_a": 1.5, "far_a": 0.0, "far_b": 0.5}  # how far OOD samples lie along a class axis from the start


class Truth(NamedTuple):
    """A loss, the causes that must be named, and those that may be (what two do only together may go to either)."""

    lost: float
    required: frozenset[str]
    allowed: frozenset[str]


@dataclass(frozen=True)
class World:
    """A simulated run.

    gap: how much the logits of a task sink per step after its own. crowding: how far OOD comes along the newest axes by
    the last step, as a share of the way; far_crowding: the same for far-OOD alone. fading: the share of a class's
    features lost per step. dead: how much of an old task's logits is noise instead of what its features say.
    """

    gap: float = 0.0
    crowding: float = 0.0
    far_crowding: float | None = None
    fading: float = 0.0
    dead: float = 0.0
    tasks: int = 5
    per_class: int = 40
    ood: int = 200
    strength: float = 6.0
    features: bool = True
    seed: int = 0

    def steps(self) -> list[dict[str, Any]]:
        """The outputs of each step; the same images at every step."""
        rng = np.random.default_rng(self.seed)
        classes = 2 * self.tasks
        labels = np.repeat(np.arange(classes), self.per_class)
        noise = {name: rng.normal(size=(len(labels), classes + 6)) for name in ("test", "calibration")}
        oods = {name: rng.normal(size=(self.ood, classes + 6)) for name in GROUPS}
        return [self._step(t, labels, noise, oods, rng) for t in range(self.tasks)]

    def _step(self, t: int, labels: Any, noise: Any, oods: Any, rng: np.random.Generator) -> dict[str, Any]:
        seen = 2 * (t + 1)
        age = np.maximum(t - np.arange(seen) // 2, 0)
        rows = labels < seen
        moved = 0.35 * rng.normal(size=noise["test"].shape[1])  # features drift a little at every step

        def outputs(given: Any, own: Any, along: Any) -> dict[str, Any]:
            z = given + 0.3 * rng.normal(size=given.shape)
            z[np.arange(len(z)), own] += along
            logits = z[:, :seen].copy()
            alive = 1 - self.dead * (age > 0)
            logits = alive * logits + np.sqrt(1 - alive**2) * rng.normal(size=logits.shape)
            logits -= self.gap * age
            found = {"logits": logits.astype(np.float32)}
            return found | ({"features": (z + moved).astype(np.float32)} if self.features else {})

        sets: dict[str, Any] = {}
        for name, given in noise.items():
            own = labels[rows]
            sets[name] = outputs(given[rows], own, self.strength * (1 - self.fading) ** age[own]) | {"labels": own}
        sets["ood"] = {}
        for name, given in oods.items():
            far = self.far_crowding if GROUPS[name] == "far" and self.far_crowding is not None else self.crowding
            start = OFFSET[name] + (3.0 if self.far_crowding is not None and GROUPS[name] == "far" else 0.0)
            come = start + far * self.strength * t / (self.tasks - 1)
            sets["ood"][name] = outputs(given, seen - 2 + np.arange(len(given)) % 2, come)
        return sets

    def loss(self) -> dict[str, tuple[float, float]]:
        """D_avg of energy per group, and what is left of it once every channel has the same level."""
        steps = self.steps()
        last = steps[-1]
        partition = Partition.from_sizes([2] * self.tasks)
        own = task_energies(last["test"]["logits"], partition)
        tasks = last["test"]["labels"] // 2
        level = np.array([own[tasks == i, i].mean() for i in range(self.tasks)])
        found: dict[str, list[tuple[float, float]]] = {group: [] for group in set(GROUPS.values())}
        for name, group in GROUPS.items():
            before, after, levelled = [], [], []
            unknown = last["ood"][name]["logits"]
            for i in range(self.tasks - 1):
                test = steps[i]["test"]
                fresh = energy(test["logits"])[test["labels"] // 2 == i]
                before.append(auroc(fresh, energy(steps[i]["ood"][name]["logits"])))
                after.append(auroc(energy(last["test"]["logits"])[tasks == i], energy(unknown)))
                raised = (own[tasks == i] - level).max(axis=1), (task_energies(unknown, partition) - level).max(axis=1)
                levelled.append(auroc(*raised))
            found[group].append((float(np.mean(before) - np.mean(after)), float(np.mean(before) - np.mean(levelled))))
        by_group = {group: _mean(values) for group, values in found.items()}
        return by_group | {"all": _mean(list(by_group.values()))}

    def truth(self) -> dict[str, Truth]:
        """The loss and its causes per group, counterfactually, on many samples."""
        large = replace(self, per_class=10 * self.per_class, ood=10 * self.ood, features=False, seed=10_000)
        whole = large.loss()
        required: dict[str, set[str]] = {group: set() for group in whole}
        allowed: dict[str, set[str]] = {group: set() for group in whole}
        for group, (lost, rest) in whole.items():
            if lost >= 0.02 and lost - rest >= 0.25 * lost:
                required[group].add("confidence gap")
        on = [name for name in CAUSES if name != "gap" and getattr(self, name)]
        for name in on:
            without = replace(large, **{name: 0.0}).loss()
            alone = replace(large, **{other: 0.0 for other in on if other != name}).loss() if len(on) > 1 else whole
            for group, (lost, rest) in whole.items():
                if lost >= 0.02 and min(rest - without[group][1], alone[group][1]) >= 0.25 * lost:
                    required[group].add(CAUSES[name])
                if lost >= 0.02 and max(rest - without[group][1], alone[group][1]) >= 0.25 * lost:
                    allowed[group].add(CAUSES[name])
        return {g: Truth(whole[g][0], frozenset(required[g]), frozenset(required[g] | allowed[g])) for g in whole}

    def write(self, path: Path) -> Run:
        """A run directory."""
        shutil.rmtree(path, ignore_errors=True)
        groups = {g: [name for name in GROUPS if GROUPS[name] == g] for g in ("near", "far")}
        tasks = [[2 * i, 2 * i + 1] for i in range(self.tasks)]
        run = write_manifest(path, tasks, **groups, calibration={"source": "held out"})
        for t, sets in enumerate(self.steps()):
            write_step(path, t, **sets)
        return run


def grid() -> dict[str, list[World]]:
    """The kinds of run, weak to strong."""
    both = [(0.3, 0.6), (0.4, 0.7), (0.5, 0.75), (0.6, 0.8), (0.9, 0.85)]
    return {
        "none": [World(), World(strength=8), World(tasks=8), World(per_class=80)],
        "gap only": [World(gap=g) for g in (0.6, 0.9, 1.2, 1.6, 2.2)],
        "crowding only": [World(crowding=c) for c in (0.35, 0.5, 0.6, 0.75, 0.9)],
        "gap and crowding": [World(gap=g, crowding=c) for g, c in both],
        "lost features": [World(fading=f) for f in (0.2, 0.3, 0.4, 0.5, 0.6)],
        "dead channels": [World(dead=d) for d in (0.85, 0.9, 0.95, 0.98, 1.0)],
        "near lost, far gained": [World(crowding=c, far_crowding=-0.5) for c in (0.3, 0.4, 0.5, 0.6, 0.7)],
        "gap, logits only": [World(gap=g, features=False) for g in (0.6, 0.9, 1.2, 1.6, 2.2)],
    }


STRONG = {"gap": (0.2, 1.5), "crowding": (0.3, 0.9), "fading": (0.15, 0.6), "dead": (0.8, 1.0)}
WEAK = {"gap": (0.1, 0.6), "crowding": (0.15, 0.5), "fading": (0.05, 0.25), "dead": (0.4, 0.8)}


def drawn(seed: int, mixed: bool = False, ranges: Mapping[str, tuple[float, float]] = STRONG) -> World:
    """A run of random sizes and strengths, with one mechanism or gap and crowding; ``mixed``: with any two or more."""
    rng = np.random.default_rng((99, seed))
    single = [("gap",), ("crowding",), ("gap", "crowding"), ("fading",), ("dead",), ()][int(rng.integers(6))]
    several = [name for name in ranges if rng.random() < 0.5]
    while len(several) < 2:
        several = [name for name in ranges if rng.random() < 0.5]
    chosen = several if mixed else single
    on = {name: float(rng.uniform(*ranges[name])) for name in chosen}
    sizes = {
        "tasks": int(rng.integers(3, 9)),
        "per_class": int(rng.integers(20, 61)),
        "ood": int(rng.integers(100, 401)),
    }
    return World(**on, **sizes, strength=float(rng.uniform(5, 8)), seed=seed)  # type: ignore[arg-type]


def outcome(verdict: Verdict, truth: dict[str, Truth]) -> str:
    """``right``, ``wrong`` or ``undecided``, over the groups that the verdict speaks about.

    Wrong: a cause that is none, a cause denied, a loss of 5 points or more denied, a loss claimed that is none.
    """
    answers = []
    spoken = {one.scope: one for one in verdict.spoken}
    state = {one.scope: one.state for one in verdict.judgements}
    for group in (group for group in truth if group != "all"):
        one = spoken.get("all", spoken.get(group))
        real = truth["all" if "all" in spoken else group]
        lost = truth[group].lost
        if one is None:
            denied = state[group] in ("kept", "gained")
            answers.append("right" if lost < 0.02 else "wrong" if lost >= 0.05 and denied else "undecided")
        elif lost < 0.01:
            answers.append("wrong")
        else:
            named, opened = set(one.causes), {cause for kinds in one.undecided for cause in kinds}
            if named - real.allowed or real.required - named - opened:
                answers.append("wrong")
            else:
                answers.append("right" if named >= real.required and named else "undecided")
    return next((kind for kind in ("wrong", "undecided") if kind in answers), "right")


def simulate(seeds: int, folder: Path, first: int = FIRST) -> list[tuple[str, float, str, str]]:
    """Kind, true loss (the larger of near and far), outcome and cause of every run."""
    found = []
    kinds = grid() | {"drawn at random": [drawn(first + seed) for seed in range(12 * seeds)]}
    kinds |= {"any mixture, at random": [drawn(first + seed, mixed=True) for seed in range(12 * seeds)]}
    kinds |= {"weak mixture, at random": [drawn(first + seed, mixed=True, ranges=WEAK) for seed in range(12 * seeds)]}
    for kind, worlds in kinds.items():
        for world in worlds:
            truth = world.truth()
            size = max(one.lost for one in truth.values())
            for seed in range(first, first + seeds) if kind in grid() else [world.seed]:
                run = replace(world, seed=seed).write(folder / "run")
                verdict = audit(run, ["energy"]).verdict
                found.append((kind, size, outcome(verdict, truth), verdict.cause))
    return found


def table(found: list[tuple[str, float, str, str]]) -> list[str]:
    """The confusion table as Markdown lines."""
    kinds = list(dict.fromkeys(kind for kind, *_ in found))
    lines = [
        "| made with | true loss | runs | right | undecided | wrong |",
        "| --- | --- | ---: | ---: | ---: | ---: |",
    ]
    bands = [("below 5 points", 0.0, 0.05), ("5 points or more", 0.05, 2.0)]
    for kind in [*kinds, "all"]:
        for name, low, high in bands:
            rows = [answer for k, size, answer, _ in found if kind in (k, "all") and low <= size < high]
            if rows:
                shares = [f"{100 * rows.count(answer) / len(rows):.0f} %" for answer in ("right", "undecided", "wrong")]
                lines.append(f"| {kind} | {name} | {len(rows)} | {' | '.join(shares)} |")
    return lines


def _mean(values: list[tuple[float, float]]) -> tuple[float, float]:
    lost, rest = np.mean(values, axis=0).tolist()
    return lost, rest


def main() -> None:
    """Print the confusion table, or write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--first", type=int, default=FIRST, help="the first seed")
    parser.add_argument("--verbose", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = simulate(options.seeds, Path(folder), options.first)
    if options.verbose:
        for key in dict.fromkeys((kind, round(100 * size, 1)) for kind, size, *_ in found):
            rows = [(a, c) for kind, size, a, c in found if (kind, round(100 * size, 1)) == key]
            counted = {row: rows.count(row) for row in dict.fromkeys(rows)}
            print(*key, counted)
    print("\n".join(table(found)))


if __name__ == "__main__":
    main()

"""Claim: the default score is near energy where energy is right and far above it where old channels have sunk.

    python benchmarks/regimes.py OUT [--page FILE] [--save FILE]

reads the files of regimes_data.py. Per run: Avg AUROC in percent, (near + far) / 2, mean over tasks, then over steps
with at least two tasks. Per regime, each counted once: mean and worst over its runs of the difference from energy, and
of the regret: the difference from the best of energy, mean shift and robust anchor, picked per run with hindsight. For
each regime a rule is also chosen on the other regimes and judged on the one left out. --save keeps the metrics of every
run and rule as CSV; that file may be given as OUT. With --page the tables replace those in a Markdown file.
"""

from __future__ import annotations

import argparse
import csv
import os

for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[variable] = "1"

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from scipy.special import ndtr

from regimes_data import cells
from tood.calibration.statistics import energy_statistics, least_spread
from tood.energy import logsumexp, with_lead

EARLIER = ("shrinkage", "shrinkage, no lead")  # the default of version 0.2: its metrics are kept in the CSV file
PAPER = ("energy", "mean shift", "robust anchor")
REGIMES = list(dict.fromkeys(cell.regime for cell in cells()))
SHOWN = ("mean shift", "robust anchor", "line", "background")
GOALS = (-1.5, -3.0)  # lowest difference from energy, with and without replay
WORST_REGRET = -6.0
HELD_OUT = 20  # calibration samples per class, at most half of the test set
ENOUGH = 5.0  # a larger gain over energy counts as this much in the choice of a rule


@dataclass
class Sets:
    """One step: task energies of the calibration set ``[B, N]`` and of test and OOD sets ``[n, N]``."""

    calibration: Any
    tasks: Any  # [B]
    energies: Any  # test first, then each OOD set
    test_tasks: Any
    ends: Any  # where each set ends
    groups: Any  # near or far, of each OOD set

    @cached_property
    def statistics(self) -> dict[str, Any]:
        """As ``TOOD.statistics_``, and mean and deviation of the energy of each task's samples."""
        total = logsumexp(self.calibration)
        groups = [total[self.tasks == t] for t in range(self.calibration.shape[1])]
        result = energy_statistics(self.calibration, self.tasks)
        return result | {
            "energy_mean": np.array([group.mean() for group in groups]),
            "energy_std": np.array([group.std() for group in groups]),
        }

    def auroc(self, scores: Any) -> float:
        """AUROC in percent, mean over tasks, (near + far) / 2."""
        known, *unknown = np.split(scores, self.ends[:-1])
        by_set = []
        for values in map(np.sort, unknown):
            below = (np.searchsorted(values, known, "left") + np.searchsorted(values, known, "right")) / 2 / len(values)
            by_set.append((np.bincount(self.test_tasks, below) / np.bincount(self.test_tasks)).mean())
        means = [np.mean(np.array(by_set)[self.groups == g]) for g in ("near", "far") if (self.groups == g).any()]
        return float(100 * np.mean(means))


Rule = Callable[[Sets, Any], Any]  # the score of energies [n, N]


def paper(location: str, scale: str | None) -> Rule:
    """A variant of the paper: the largest re-centred channel, plus half its lead."""

    def rule(sets: Sets, energies: Any) -> Any:
        s = sets.statistics
        u = energies - s[location]
        return with_lead(u if scale is None else u / np.maximum(s[scale], least_spread(s[location])), 0.5)

    return rule


Trust = Callable[[Any], Any]  # of each channel from its separation d [N]


def half_at(h: float) -> Trust:
    return lambda d: d**2 / (d**2 + h)


def by_auroc(d: Any) -> Any:
    return 2 * ndtr(d / np.sqrt(2)) - 1


def fully(d: Any) -> Any:
    return np.ones_like(d)


@dataclass
class Moved:
    """Channels moved towards ``(E - rest mean) / rest deviation`` as far as they are trusted; the largest counts."""

    trust: Trust
    capped: bool = True
    scaled: bool = True
    lead: float = 0.0

    def trusted(self, s: dict[str, Any]) -> Any:
        """``[N]``: 0 to 1."""
        spread = np.sqrt((s["std"] ** 2 + s["rest_std"] ** 2) / 2)
        return self.trust(np.maximum(s["mean"] - s["rest_mean"], 0) / spread)

    def channels(self, s: dict[str, Any]) -> tuple[Any, Any]:
        """``[N]`` each: factor and offset of every channel."""
        w, log_spread = self.trusted(s), np.log(np.maximum(s["rest_std"], least_spread(s["rest_mean"])))
        if not w.any():
            return np.ones_like(w), np.zeros_like(w)
        centre, log_common = (np.average(values, weights=w) for values in (s["rest_mean"], log_spread))
        factor = np.exp(w * (log_common - log_spread)) if self.scaled else np.ones_like(w)
        return factor, s["rest_mean"] * (1 - factor) + w * (centre - s["rest_mean"])

    def __call__(self, sets: Sets, energies: Any) -> Any:
        """The score of energies ``[n, N]``."""
        s = sets.statistics
        factor, offset = self.channels(s)
        if self.capped:
            energies = np.minimum(energies, s["mean"] + s["std"])
        return with_lead(energies * factor + offset, self.lead)


Weight = Callable[[Any], tuple[float, float]]  # of energy and of the channels, from the trust of each


def hedge(b: Moved, weight: float | Weight, exact: bool = False) -> Rule:
    """``z(energy) + w z(b)``, both standardised on the calibration set."""

    def rule(sets: Sets, energies: Any) -> Any:
        s = sets.statistics
        factor, offset = b.channels(s)
        level, spread = pooled(s["count"], s["mean"] * factor + offset, s["std"] * factor)
        if exact:
            known = b(sets, sets.calibration)
            level, spread = known.mean(), known.std()
        energy_level, energy_spread = pooled(s["count"], s["energy_mean"], s["energy_std"])
        of_energy, of_b = weight(b.trusted(s)) if callable(weight) else (1.0, weight)
        z = (logsumexp(energies) - energy_level) / energy_spread
        return of_energy * z + of_b * (b(sets, energies) - level) / spread

    return rule


def pooled(count: Any, mean: Any, std: Any) -> tuple[float, float]:
    """Mean and deviation of all samples from those of each task."""
    level = np.average(mean, weights=count)
    return level, float(np.sqrt(np.average(std**2 + (mean - level) ** 2, weights=count)))


LINE, LED = Moved(fully), Moved(half_at(0.25), capped=False, lead=0.5)
QUARTER, ONE, SHIFT, GINI = (
    Moved(half_at(0.25)),
    Moved(half_at(1.0)),
    Moved(half_at(0.25), scaled=False),
    Moved(by_auroc),
)
RULES: dict[str, Rule] = {
    "energy": lambda sets, energies: logsumexp(energies),
    "mean shift": paper("mean", None),
    "robust anchor": paper("median", "mad"),
    "line": Moved(fully, capped=False),
    "line, capped": LINE,
    "moved 1/4, not capped": Moved(half_at(0.25), capped=False),
    "moved 1/4": QUARTER,
    "moved 1": ONE,
    "hedge 1/2 of moved 1/4, exact z": hedge(QUARTER, 0.5, exact=True),
    "hedge 1/4 of moved 1/4": hedge(QUARTER, 0.25),
    "hedge 1/2 of moved 1/4": hedge(QUARTER, 0.5),
    "hedge 1 of moved 1/4": hedge(QUARTER, 1.0),
    "hedge 1/2 of line, capped": hedge(LINE, 0.5),
    "hedge 1 of line, capped": hedge(LINE, 1.0),
    "hedge 1/2 of moved 1": hedge(ONE, 0.5),
    "hedge 1 of moved 1": hedge(ONE, 1.0),
    "hedge 1/2 of moved 1/4, not capped": hedge(Moved(half_at(0.25), capped=False), 0.5),
    "hedge 1/2 of moved 1/4, lead 1/2": hedge(Moved(half_at(0.25), lead=0.5), 0.5),
    "shifted 1/4": SHIFT,
    "hedge 1/2 of shifted 1/4": hedge(SHIFT, 0.5),
    "hedge 1 of shifted 1/4": hedge(SHIFT, 1.0),
    "hedge mean trust of moved 1/4": hedge(QUARTER, lambda w: (1.0, w.mean())),
    "hedge mean trust of moved 1": hedge(ONE, lambda w: (1.0, w.mean())),
    "hedge squared mean trust of moved 1/4": hedge(QUARTER, lambda w: (1.0, w.mean() ** 2)),
    "mean trust between energy and moved 1": hedge(ONE, lambda w: (1 - w.mean(), w.mean())),
    "hedge mean trust of moved by AUROC": hedge(GINI, lambda w: (1.0, w.mean())),
    "mean trust between energy and moved by AUROC": hedge(GINI, lambda w: (1 - w.mean(), w.mean())),
    "hedge least trust of moved 1": hedge(ONE, lambda w: (1.0, w.min())),
    # Added after the others had been run: the best of them without a cap, and energy exactly if nothing is trusted.
    "hedge 1/2 of moved 1/4, not capped, lead 1/2": hedge(LED, 0.5),
    "background": hedge(LED, lambda w: (1.0, w.mean() / 2)),
}


@dataclass
class Results:
    """Avg AUROC of each rule on each run."""

    metrics: dict[str, Any]  # [R] each
    regimes: Any  # [R]
    replays: Any  # [R]
    runs: list[str]

    def above_energy(self, rule: str) -> Any:
        """``[R]``: difference from energy."""
        return self.metrics[rule] - self.metrics["energy"]

    def regret(self, rule: str) -> Any:
        """``[R]``: difference from the best of the paper's three."""
        return self.metrics[rule] - np.max([self.metrics[name] for name in PAPER], axis=0)

    def names(self) -> list[str]:
        """The regimes, in order."""
        return list(dict.fromkeys(self.regimes))

    def worth(self, rule: str, regimes: Sequence[str]) -> tuple[float, float]:
        """Least violation of the goals over the regimes, then the mean gain over energy; higher is better."""
        of = np.isin(self.regimes, regimes)
        goal = np.where(self.replays, *GOALS)
        below = np.minimum(np.minimum(self.above_energy(rule) - goal, self.regret(rule) - WORST_REGRET), 0)[of]
        gain = [np.minimum(self.above_energy(rule), ENOUGH)[self.regimes == name].mean() for name in regimes]
        return round(float(below.min()), 1), float(np.mean(gain))


def read(folder: Path, source: str, kept: Path | None) -> Results:
    """Metrics of every rule from the files of regimes_data.py, or those kept in a CSV file."""
    table = folder if folder.is_file() else kept
    text = table.read_text(encoding="utf-8") if table is not None and table.exists() else ""
    rows = {row["run"]: row for row in csv.DictReader(text.splitlines())}
    if folder.is_file():
        names = [(row["regime"], row["replays"] == "yes", run) for run, row in rows.items()]
        return _results(names, {rule: [float(row[rule]) for row in rows.values()] for rule in (*RULES, *EARLIER)})
    names, found = [], []
    for file in sorted(folder.glob("*.npz")):
        with np.load(file) as arrays:
            numbers = [name.partition("/")[0] for name in arrays.files if name.endswith("/calibration_tasks")]
            steps = [step_sets(arrays, number, source) for number in numbers]
            names.append((str(arrays["regime"]), bool(arrays["replays"]), file.stem))
        found.append([np.mean([s.auroc(rule(s, s.energies)) for s in steps]) for rule in RULES.values()])
    metrics: dict[str, Any] = dict(zip(RULES, np.array(found).T, strict=True))
    earlier = {rule: [float(rows.get(run, {}).get(rule) or "nan") for _, _, run in names] for rule in EARLIER}
    return _results(names, metrics | earlier)


def _results(names: list[tuple[str, bool, str]], metrics: dict[str, Any]) -> Results:
    order = sorted(range(len(names)), key=lambda i: (REGIMES.index(names[i][0]), names[i][2]))
    regimes, replays, runs = zip(*(names[i] for i in order), strict=True)
    columns = {rule: np.array(values)[order] for rule, values in metrics.items()}
    return Results(columns, np.array(regimes), np.array(replays), list(runs))


def step_sets(arrays: Any, step: str, source: str) -> Sets:
    """One step of a file; calibration samples from the training data, or held out from the test set."""
    calibration, test = (arrays[f"{step}/{name}"].astype(np.float64) for name in ("calibration", "test"))
    tasks, test_tasks = (arrays[f"{step}/{name}_tasks"].astype(np.int64) for name in ("calibration", "test"))
    if source == "held out":
        labels = arrays[f"{step}/test_labels"].astype(np.int64)
        order = np.random.default_rng(0).permutation(len(labels))
        order = order[np.argsort(labels[order], kind="stable")]
        rank = np.arange(len(order)) - np.searchsorted(labels[order], labels[order])  # within its class
        most = np.minimum(HELD_OUT, np.bincount(labels)[labels[order]] // 2)
        kept, rest = order[rank < most], order[rank >= most]
        calibration, tasks, test, test_tasks = test[kept], test_tasks[kept], test[rest], test_tasks[rest]
    sets = [test, *(arrays[f"{step}/ood{i}"].astype(np.float64) for i in range(len(arrays["groups"])))]
    return Sets(calibration, tasks, np.concatenate(sets), test_tasks, np.cumsum([*map(len, sets)]), arrays["groups"])


def table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> list[str]:
    """A Markdown table."""
    lines = ["| " + " | ".join(head) + " |", "| --- " + "| ---: " * (len(head) - 1) + "|"]
    return [*lines, *("| " + " | ".join(map(str, row)) + " |" for row in rows), ""]


def signed(value: float) -> str:
    return f"{value:+.1f}".replace("-", "−") if np.isfinite(value) else "–"


def all_tables(results: Results) -> dict[str, list[str]]:
    """Every table by its name in the page."""
    regimes = results.names()
    images = [name for name in regimes if "CIFAR" in name or name == "another backbone"]

    def mean(values: Any, names: Sequence[str]) -> float:
        return float(np.mean([values[results.regimes == name].mean() for name in names])) if names else np.nan

    rows = []
    for rule in (*EARLIER, *RULES):
        above, regret = results.above_energy(rule), results.regret(rule)
        worst = above[results.replays].min(), above[~results.replays].min()
        numbers = (mean(above, regimes), mean(above, images), *worst, mean(regret, regimes), regret.min())
        rows.append([rule, *map(signed, numbers)])
    head = ["rule", "over energy", "images", "worst, replay", "worst, no replay", "regret", "worst regret"]
    few = [row for row in rows if row[0] in SHOWN]
    return {
        "rules": table(head, rows),
        "few": table(head, few),
        "energy": _by_regime(results, results.above_energy),
        "regret": _by_regime(results, results.regret),
        "left out": left_out(results),
    }


def _by_regime(results: Results, values: Callable[[str], Any]) -> list[str]:
    """Mean (worst) over the runs of each regime, one column per rule."""
    rows = []
    for name in results.names():
        of = results.regimes == name
        parts = [values(rule)[of] for rule in SHOWN]
        rows.append([f"{name} ({of.sum()})", *(f"{signed(part.mean())} ({signed(part.min())})" for part in parts)])
    return table(["regime (runs)", *SHOWN], rows)


def left_out(results: Results) -> list[str]:
    """For each regime: the rule that is best on all others, and how it does on this one."""
    rows = []
    for name in results.names():
        of, others = results.regimes == name, [other for other in results.names() if other != name]
        chosen = max(RULES, key=lambda rule: results.worth(rule, others))
        above, regret = results.above_energy(chosen)[of], results.regret(chosen)[of]
        cells = [signed(v) for v in (above.mean(), above.min(), regret.mean(), regret.min())]
        rows.append([name, int(of.sum()), chosen, *cells])
    head = ["left out", "runs", "rule chosen", "gain", "worst", "regret", "worst regret"]
    return table(head, rows)


def fill(page: Path, tables: dict[str, list[str]]) -> None:
    """Replace what stands between ``<!-- NAME -->`` and ``<!-- end -->`` in a page; not every table has a place."""
    text = page.read_text(encoding="utf-8")
    for name, lines in tables.items():
        before, start, rest = text.partition(f"<!-- {name} -->")
        if not start:
            continue
        text = "\n".join([before + start, "", *lines, ""]) + rest[rest.index("<!-- end -->") :]
    page.write_text(text, encoding="utf-8")


def save(path: Path, results: Results) -> None:
    """One line per run, one column per rule."""
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["regime", "run", "replays", *results.metrics])
        for i, run in enumerate(results.runs):
            numbers = [f"{values[i]:.3f}" for values in results.metrics.values()]
            writer.writerow([results.regimes[i], run, "yes" if results.replays[i] else "no", *numbers])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, help="folder of regimes_data.py, or a CSV file of --save")
    parser.add_argument("--source", choices=["held out", "train"], default="held out", help="of calibration samples")
    parser.add_argument("--page", type=Path, help="a Markdown file; its tables are replaced")
    parser.add_argument("--save", type=Path, metavar="FILE", help="CSV of metrics per run")
    options = parser.parse_args()
    results = read(options.out, options.source, options.save)
    if options.save:
        save(options.save, results)
    tables = all_tables(results)
    for name, lines in tables.items():
        print("\n".join([f"## {name}", "", *lines]))
    if options.page:
        fill(options.page, tables)


if __name__ == "__main__":
    main()

"""Claim: the default score loses little in any regime, and the score that also reads features loses nothing.

    python benchmarks/regimes.py --cache CACHE [--table FILE] [--toy SEEDS] [--every K] [--page FILE ...] [RUN ...]

Regret is Avg AUROC (percent; mean of near and far sets, over tasks, then steps) minus the best of energy, mean shift
and robust anchor, picked per run with hindsight. A regime is a stream with a kind of network: the toy's three, digits,
a stream from scratch, a stream on frozen pretrained features. Rules and constants are also chosen on all regimes but
one and judged on the one left out, for each in turn. Runs are read once into CACHE: task energies, squared distances to
class means, at most 5,000 test and 2,000 OOD samples per set, and the figures; delete it after changing a rule. An
unfinished run counts with the steps it has. With --every K only every K-th step of streams longer than 20 tasks is
read. --table names a CSV file with the figures of each run: the runs given here are added to it or replace their rows,
and the runs that only the file knows count too, so that outputs may be deleted. With --page the tables also replace
those in a Markdown file, between ``<!-- NAME -->`` and ``<!-- end -->``.
"""

from __future__ import annotations

import argparse
import csv
import json
import os

for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[variable] = "1"

import tempfile
import warnings
from collections.abc import Callable, Iterable, Sequence
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from regimes_data import Sets, cache_file, load, steps_of, write_toy
from tood.calibration import TOOD
from tood.detectors.joint import LARGEST_WEIGHT, mixture, normalised_score, weight_of_features
from tood.energy import logsumexp, with_lead
from tood.errors import ToodError
from tood.paper import toy
from tood.partition import Partition
from tood.runs import find_runs

EARLIER = 556  # rules tried by hand before these: see docs/results/regimes.md
GOALS = "mean >= -0.3, 90 % of runs >= -0.5, worst >= -1.5, never more than 1 below energy"
PAPER = ("energy", "mean shift", "robust anchor")

Rule = Callable[[Sets], Any]


def channels(variant: str, margin: float = 0.5) -> Rule:
    """A variant of TOOD as the library computes it, from task energies."""

    def rule(sets: Sets) -> Any:
        count = sets.energies.shape[1]
        cal = TOOD.from_statistics(Partition.from_sizes([1] * count), sets.statistics, variant=variant)
        return with_lead(cal.channels().normalised(sets.energies), margin)

    return rule


# The d² at which a channel is half trusted, from the number of tasks N and of own samples n [N].
HALF: dict[str, Callable[[int, Any], Any]] = {
    "1/2": lambda N, n: 0.5,
    "1": lambda N, n: 1.0,
    "1/(N-1) + 1/n": lambda N, n: 1 / (N - 1) + 1 / n,
    "8/n": lambda N, n: 8 / n,
    "16/n": lambda N, n: 16 / n,
    "24/n": lambda N, n: 24 / n,
}


def family(weak: float, half: str, cap: float, margin: float) -> Rule:
    """Shrinkage with other constants.

    The background is the line through other tasks' samples at ``weak`` deviations below the own mean, trust is
    d² / (d² + half), and energies are cut ``cap`` deviations above the own mean.
    """

    def rule(sets: Sets) -> Any:
        s = sets.statistics
        energies, count = sets.energies, len(s["mean"])
        if count == 1:
            return energies[:, 0]
        if np.isfinite(cap):
            energies = np.minimum(energies, s["mean"] + cap * s["std"])
        background = s["rest_mean"] - weak * s["rest_slope"]
        variance = (s["std"] ** 2 + s["rest_std"] ** 2) / 2
        d = np.maximum(s["mean"] - background, 0) ** 2 / variance
        trusted = d / (d + HALF[half](count, s["count"]))
        if not trusted.any():
            return with_lead(energies, margin)
        middle, log_spread = (s["mean"] + background) / 2, np.log(variance) / 2
        common, common_log = (np.average(v, weights=trusted) for v in (middle, log_spread))
        rate = np.exp(trusted * (common_log - log_spread))
        return with_lead((energies - middle) * rate + middle + trusted * (common - middle), margin)

    return rule


def joint(weight: float | None, largest: float = LARGEST_WEIGHT) -> Rule:
    """``tood_joint`` with a fixed weight of the features, or with its own (None), at most ``largest``."""

    def rule(sets: Sets) -> Any:
        known = normalised_score(sets.calibration, sets.statistics, "shrinkage", 0.5)
        scores = normalised_score(sets.energies, sets.statistics, "shrinkage", 0.5)
        share = weight
        if share is None:
            share = weight_of_features(sets.calibration, sets.held_out, sets.tasks, "shrinkage", 0.5)
            share *= largest / LARGEST_WEIGHT
        to_logits, to_squared, offset = mixture(known, sets.held_out.min(axis=1), share)
        return to_logits * scores + to_squared * sets.squared + offset

    return rule


LOGITS: dict[str, Rule] = {
    "energy": lambda sets: logsumexp(sets.energies),
    "mean shift": channels("mean_shift"),
    "robust anchor": channels("robust_anchor"),
    "auto": channels("auto"),
    "shrinkage": channels("shrinkage"),
    "shrinkage, margin 0": channels("shrinkage", 0.0),
    "shrinkage of before": family(0.0, "1/2", 1.0, 0.5),
}
FAMILY: dict[str, Rule] = {
    f"weak {w}, half {h}, cap {c}, margin {m}": family(w, h, c, m)
    for w, h, c, m in product((0.0, 2.0), HALF, (0.5, 1.0, np.inf), (0.0, 0.25, 0.5))
}
FEATURES: dict[str, Rule] = {
    "typicality": lambda sets: -sets.squared,
    "tood_joint": joint(None),
    **{f"tood_joint, at most {w}": joint(None, w) for w in (0.25, 1.0)},
    **{f"tood_joint, weight {w}": joint(w) for w in (0.25, 0.5, 1.0)},
}


class Results(NamedTuple):
    """Avg AUROC, near and far of each rule on each run, and the regime of each run."""

    figures: dict[str, Any]  # [R, 3] each
    regimes: Any  # [R]

    def regret(self, rule: str, column: int = 0) -> Any:
        """``[R]``: below the best of the paper's three, each column by its own best."""
        return self.figures[rule][:, column] - np.max([self.figures[name][:, column] for name in PAPER], axis=0)

    def names(self) -> list[str]:
        """The regimes, sorted."""
        return sorted(set(self.regimes))


def measure(steps: list[Sets], rule: Rule) -> tuple[float, ...]:
    """Mean over steps of Avg AUROC, near and far."""
    return tuple(np.mean([sets.averages(rule(sets)) for sets in steps], axis=0))


def figures_of(run: Any, rules: dict[str, Rule], cache: Path, every: int) -> dict[str, Any]:
    """Of each rule, measured now or kept in the cache beside the arrays."""
    file = cache_file(run, cache, every).with_suffix(".json")
    kept: dict[str, Any] = json.loads(file.read_text()) if file.exists() else {}
    missing = [name for name in rules if name not in kept]
    if missing:
        steps = load(run, cache, every)
        kept |= {name: measure(steps, rules[name]) for name in missing}
        file.write_text(json.dumps(kept))
    return kept


def regime(run: Any) -> str:
    """The stream and the kind of network."""
    if run.stream == "toy":
        return f"toy, {run.learner}"
    network = str((run.manifest.get("options") or {}).get("network", ""))
    pretrained = network.startswith("efficientnet_lite") or network.endswith("+pretrained")
    kind = "frozen" if run.manifest.get("preset") == "frozen" else "fine-tuned" if pretrained else "from scratch"
    return run.stream if run.stream == "digits" else f"{run.stream}, {kind}"


def table(head: Iterable[str], rows: Iterable[Iterable[object]]) -> list[str]:
    """A Markdown table; numbers get one decimal."""
    lines = ["| " + " | ".join(head) + " |", "| --- " + "| ---: " * (len(list(head)) - 1) + "|"]
    for row in rows:
        lines.append("| " + " | ".join(f"{c:.1f}" if isinstance(c, float) else str(c) for c in row) + " |")
    return [*lines, ""]


def summary(regret: Any, below_energy: Any) -> list[str]:
    """Mean, 10th percentile, worst, share of runs at -0.5 or better, worst against energy."""
    known = regret[~np.isnan(regret)]
    if not len(known):
        return ["–"] * len(SUMMARY)
    return [
        f"{known.mean():+.2f}",
        f"{np.percentile(known, 10):+.2f}",
        f"{known.min():+.2f}",
        f"{100 * (known >= -0.5).mean():.0f} %",
        f"{np.nanmin(below_energy):+.2f}",
    ]


SUMMARY = ["mean", "10th percentile", "worst", "at least −0.5", "worst − energy"]


def over_runs(results: Results, rules: Iterable[str], column: int = 0) -> list[str]:
    """Regret of each rule over all runs; column 0 is Avg AUROC, 1 near, 2 far."""
    rows = []
    for rule in rules:
        above_energy = results.figures[rule][:, column] - results.figures["energy"][:, column]
        rows.append([rule, *summary(results.regret(rule, column), above_energy)])
    return table([f"rule ({len(results.regimes)} runs)", *SUMMARY], rows)


def per_regime(results: Results, rules: Sequence[str]) -> list[str]:
    """Mean and worst regret in each regime."""
    rows = []
    for name in results.names():
        of = results.regimes == name
        cells = [f"{results.regret(r)[of].mean():+.1f} ({results.regret(r)[of].min():+.1f})" for r in rules]
        rows.append([name, int(of.sum()), *cells])
    return table(["regime", "runs", *rules], rows)


def left_out(results: Results, rules: Sequence[str]) -> list[str]:
    """For each regime: the rule that is best on all others, and its regret on this one."""
    rows, regrets, below = [], [], []
    for name in results.names():
        of = results.regimes == name
        others = [other for other in results.names() if other != name]
        # Gains are cut at 0.5, so that a large gain somewhere cannot pay for losses elsewhere.
        worth = {
            r: np.mean([np.minimum(results.regret(r)[results.regimes == o], 0.5).mean() for o in others]) for r in rules
        }
        chosen = max(worth, key=lambda r: worth[r])
        energy = (results.figures[chosen] - results.figures["energy"])[of, 0]
        rows.append([name, int(of.sum()), chosen, *summary(results.regret(chosen)[of], energy)])
        regrets.append(results.regret(chosen)[of])
        below.append(energy)
    rows.append(["all", len(results.regimes), "", *summary(np.concatenate(regrets), np.concatenate(below))])
    return table(["left out", "runs", "rule chosen on the others", *SUMMARY], rows)


def averages(results: Results, rules: Sequence[str]) -> list[str]:
    """Avg AUROC per regime."""
    rows = []
    for name in results.names():
        of = results.regimes == name
        rows.append([name, int(of.sum()), *(float(results.figures[r][of, 0].mean()) for r in rules)])
    return table(["regime", "runs", *rules], rows)


def all_tables(results: Results) -> dict[str, list[str]]:
    """Every table by its name in the page."""
    features = ["shrinkage", *FEATURES]
    tables = {"averages": averages(results, [*LOGITS, "typicality", "tood_joint"])}
    for kind, rules, candidates in (
        ("logits", list(LOGITS), [*LOGITS, *FAMILY]),
        ("features", features, [*LOGITS, *FEATURES]),
    ):
        tables[kind] = over_runs(results, rules)
        tables[f"{kind} per regime"] = per_regime(results, rules)
        tables[f"{kind} near"], tables[f"{kind} far"] = (over_runs(results, rules, column) for column in (1, 2))
        tables[f"{kind} left out"] = left_out(results, candidates)
    tables["family"] = over_runs(results, list(FAMILY))
    return tables


def fill(page: Path, tables: dict[str, list[str]]) -> None:
    """Replace what stands between ``<!-- NAME -->`` and ``<!-- end -->`` in a page."""
    text = page.read_text(encoding="utf-8")
    for name, lines in tables.items():
        start = f"<!-- {name} -->"
        if start in text:
            before, _, rest = text.partition(start)
            text = "\n".join([before + start, "", *lines, ""]) + rest[rest.index("<!-- end -->") :]
    page.write_text(text, encoding="utf-8")


def read_table(path: Path | None, rules: Iterable[str]) -> dict[tuple[str, str], dict[str, Any]]:
    """Figures of each rule by regime and run; runs that lack a rule are left out."""
    if path is None or not path.exists():
        return {}
    known: dict[tuple[str, str], dict[str, Any]] = {}
    for row in csv.DictReader(path.read_text(encoding="utf-8").splitlines()):
        key = (row.pop("regime"), row.pop("run"))
        if missing := [name for name in rules if not row.get(name)]:
            print(f"left out: {', '.join(key)}: no figures of {', '.join(missing)} in {path}")
        else:
            known[key] = {name: tuple(map(float, row[name].split())) for name in rules}
    return known


def write_table(path: Path, rules: Sequence[str], known: dict[tuple[str, str], dict[str, Any]]) -> None:
    """One line per run, one column per rule: Avg AUROC, near and far, separated by blanks."""
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["regime", "run", *rules])
        for key, figures in sorted(known.items()):
            writer.writerow([*key, *(" ".join(f"{value:.3f}" for value in figures[name]) for name in rules)])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="*", metavar="RUN_OR_PARENT")
    parser.add_argument("--cache", type=Path, required=True, help="folder for the compact arrays")
    parser.add_argument("--table", type=Path, metavar="FILE", help="CSV of figures per run, read and written")
    parser.add_argument("--toy", type=int, default=0, metavar="SEEDS", help="add the toy on this many seeds")
    parser.add_argument(
        "--page", type=Path, action="append", default=[], help="a Markdown file; its tables are replaced"
    )
    parser.add_argument("--every", type=int, default=1, metavar="K", help="of long streams, read every K-th step")
    options = parser.parse_args()
    rules = {**LOGITS, **FAMILY, **FEATURES}
    known = read_table(options.table, rules)
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        for kind, seed in product(toy.REGIMES if options.toy else (), range(options.toy)):
            write_toy(Path(folder) / f"toy-{kind}-s{seed}", kind, seed)
        for run in (
            find_runs([*options.runs, *([folder] if options.toy else [])]) if options.runs or options.toy else ()
        ):
            if not steps_of(run, options.every):
                continue
            try:
                known[regime(run), run.path.name] = figures_of(run, rules, options.cache, options.every)
            except ToodError as error:  # a step that is being written
                print(f"left out: {error}")
    if options.table is not None:
        write_table(options.table, list(rules), known)
    results = Results(
        {name: np.array([figures[name] for figures in known.values()]) for name in rules},
        np.array([of for of, _ in known]),
    )
    tables = all_tables(results)
    print(
        f"Rules here: {len(LOGITS) + len(FAMILY)} for logits, {len(FEATURES)} with features; tried before: {EARLIER}."
    )
    print(f"Goals: {GOALS}.\n")
    for name, lines in tables.items():
        print("\n".join([f"## {name}", "", *lines]))
    for page in options.page:
        fill(page, tables)


if __name__ == "__main__":
    main()

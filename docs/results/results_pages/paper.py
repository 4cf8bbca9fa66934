"""Tables of the page that compares our runs with the paper: claims, gains, ablations, the toy, runs at its length."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from results_pages.benchmark import Benchmark, read_csv, write_csv
from results_pages.claims import Claim, PaperToy, claims, mean_gain, toy_claims
from results_pages.collect import read_collected
from results_pages.evidence import Evidence, of_frozen, of_paper, of_runs
from results_pages.markdown import table
from tood.paper.reference import reported, stated
from tood.report.appearance import label
from tood.report.summary import Key, Summaries, Summary, collect, compared
from tood.report.tables import LEARNERS, TOOD_VARIANTS

__all__ = ["paper_blocks"]

LENGTH = "not tested at the paper's length"
# What it means if a rule fails: short training decides nothing about long training.
FAILS = {"from scratch": LENGTH, "frozen": "not in this regime"}
MECHANISMS = ("temperature", *TOOD_VARIANTS)
METRICS = ("avg_cil_acc", "avg_auroc", "avg_fpr95", "near_auroc", "far_auroc", "d_avg", "old_auroc")


def paper_blocks(metrics: Path) -> dict[str, Iterable[str]]:
    """The tables of the page, by the names of their places; all cells and both ways to score BiC go to CSV files."""
    runs, frozen = read_collected(metrics), Benchmark(metrics)
    short, shown = ([one for one in runs if one.preset == preset] for preset in ("cpu", "frozen"))
    scratch = {raw: of_runs(short, raw) for raw in (True, False)} if short else {}
    regimes = {"from scratch": scratch} if short else {}
    if frozen.runs:
        regimes["frozen"] = {raw: of_frozen(frozen, shown, raw) for raw in (True, False)}
    if short:
        write_csv(metrics / "cells.csv", list(_cells(collect((one.run, one.table) for one in short))))
    return {
        "claims": _claims(regimes, metrics),
        "gains": _gains(of_paper(), {name: of[True] for name, of in regimes.items()}),
        "mechanisms": _mechanisms(scratch),
        "ablations": _ablations(metrics),
        "toy": _toy(metrics),
    }


def _cells(values: Summaries) -> Iterator[dict[str, Any]]:
    """One row per stream, learner and detector: every metric, its seeds, and the paper's value where it has one."""
    published = compared(values, reported())
    rows: dict[tuple[str, ...], dict[str, Any]] = {}
    for key, value in values.items():
        if key.metric in METRICS:
            row = rows.setdefault(key[:3], {**dict(zip(Key._fields, key[:3], strict=False)), "seeds": value.seeds})
            row[key.metric] = f"{value.mean:.2f}"
            row |= {f"paper_{key.metric}": f"{published[key].mean:.1f}"} if key in published else {}
    names = ["stream", "learner", "detector", "seeds", *METRICS, *(f"paper_{name}" for name in METRICS[:3])]
    yield from ({name: rows[key].get(name, "") for name in names} for key in sorted(rows))


def _claims(regimes: Mapping[str, Mapping[bool, Evidence]], metrics: Path) -> Iterator[str]:
    """One row per claim, one column per regime. BiC is scored on raw logits here, corrected ones are in claims.csv."""
    paper = {claim.text: claim.numbers for claim in claims(of_paper())}
    found = {
        (name, raw): {claim.text: claim for claim in claims(of)}
        for name, both in regimes.items()
        for raw, of in both.items()
    }
    rows = []
    for (name, raw), of in found.items():
        who = {"regime": name, "bic": "raw" if raw else "corrected"}
        rows += [{**who, "claim": c.text, "holds": _word(name, c), "numbers": c.numbers} for c in of.values()]
    if rows:
        write_csv(metrics / "claims.csv", rows)
    texts = dict.fromkeys(text for of in found.values() for text in of)
    cells = ((_cell(name, found[name, True].get(text)) for name in regimes) for text in texts)
    lines = [(text, _short(paper.get(text, "stated")), *of) for text, of in zip(texts, cells, strict=True)]
    yield from table(("claim", "paper", *regimes), lines)
    for name in regimes:
        counts = Counter(_word(name, claim) for claim in found[name, True].values())
        yield from ("", f"{name.capitalize()}: {', '.join(f'{count} {word}' for word, count in counts.items())}.")


def _word(regime: str, claim: Claim) -> str:
    return {True: "yes", False: FAILS[regime], None: "unclear"}[claim.holds]


def _cell(regime: str, claim: Claim | None) -> str:
    return f"{_word(regime, claim)}: {_short(claim.numbers)}" if claim else "–"


def _short(numbers: str) -> str:
    """Without the range of a correlation when one learner is left out, and other details of the CSV file."""
    numbers = re.sub(r" \([^)]* leaving one out\)|, among [^,;]*|; in \d+ of them.*", "", numbers)
    return re.sub(r", (\d+) learners", r", n = \1", numbers)


def _gains(paper: Evidence, regimes: Mapping[str, Evidence]) -> Iterator[str]:
    """Gain of the paper's variants over energy with each of its learners."""
    for stream in ("cifar10", "cifar100"):
        rows = []
        for variant in TOOD_VARIANTS:
            for name, evidence in {"paper": paper, **regimes}.items():
                known = {of: evidence.gains[key] for of in LEARNERS if (key := (stream, of, variant)) in evidence.gains}
                if known:
                    mean = mean_gain(list(known.values()))
                    cells = (_gain(known.get(learner)) for learner in LEARNERS)
                    rows.append((label(variant), name, *cells, f"{mean.value:+.1f}"))
        yield from (*table((stream, "source", *map(label, LEARNERS), "mean"), rows), "")


def _gain(gain: Summary | None) -> str:
    if gain is None:
        return ""
    return f"{gain.mean:+.1f}" + (f"±{gain.std:.1f}" if gain.seeds > 1 else "")


def _mechanisms(scratch: Mapping[bool, Evidence]) -> Iterator[str]:
    """The parts of TOOD over the paper's learners, with BiC's logits raw and corrected."""
    rows = []
    for name in MECHANISMS if scratch else ():
        cells = []
        for evidence in scratch.values():
            gains = [
                value.mean - evidence.values[key._replace(detector="energy")].mean
                for key, value in evidence.values.items()
                if key.detector == name and key.metric == "avg_auroc" and key.learner in LEARNERS
            ]
            cells.append(f"{sum(gains) / len(gains):+.1f} ({min(gains):+.1f} to {max(gains):+.1f})" if gains else "–")
        rows.append((label(name), f"{stated()[name, '']:+.1f}", *cells))
    yield from table(("score", "paper", "here, BiC raw", "here, BiC corrected"), rows)


def _ablations(metrics: Path) -> Iterator[str]:
    rows = read_csv(metrics / "ablations.csv")
    names = ("finding", "mean", "lowest", "highest", "settings", "paper")
    yield from table(names, [[row[name] for name in names] for row in rows if row["paper"]])


def _toy(metrics: Path) -> Iterator[str]:
    known = stated()
    theirs = PaperToy(*(known[f"toy: {name}", ""] for name in ("gap", "gain", "crowded")))
    paper = {claim.text: claim.numbers for claim in toy_claims(theirs)}
    file, words = metrics / "toy.json", {True: "yes", False: "**no**", None: "unclear"}
    found = toy_claims(json.loads(file.read_text(encoding="utf-8"))) if file.exists() else ()
    rows = [(c.text, paper.get(c.text, "stated"), c.numbers, words[c.holds]) for c in found]
    yield from table(("claim", "paper", "here", "holds"), rows)

"""The toy beside what the paper says of its own: what is kept of a ``toy.json``, and which claims hold."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from tood.errors import ToodError
from tood.files import write_text
from tood.report.agreement import Claim
from tood.report.summary import paper_rows
from tood.report.toy_tables import FIRST

__all__ = ["collect_toy", "toy_claims"]


def collect_toy(out: Path, folder: Path, commit: str) -> list[Path]:
    """Copy the figure and what claims need of the toy in ``out/toy`` to ``folder``; nothing where that is unchanged."""
    source, target = out / "toy" / "toy.json", folder / "toy.json"
    if not source.exists():
        raise ToodError(f"{source}: not found; `tood reproduce toy` makes it")
    document = json.loads(source.read_text(encoding="utf-8"))
    runs = document["runs"]
    gaps = [run["gap"]["before"][1:] for run in runs if run["regime"] == "separated"]
    kept = {
        "summary": [{name: row[name] for name in row if name != "by_step"} for row in document["summary"]],
        "seeds": len(gaps),
        "gap": float(np.mean(gaps)),
        "margins": {
            regime: [
                float(np.nanmean([_average(run["margins"][k]) for run in runs if run["regime"] == regime]))
                for k in range(len(document["margins"]))
            ]
            for regime in document["regimes"]
        },
    }
    before = json.loads(target.read_text(encoding="utf-8")) if target.exists() else {}
    if {name: before.get(name) for name in kept} == kept:
        return []
    folder.mkdir(parents=True, exist_ok=True)
    write_text(target, json.dumps({"commit": commit, **kept}, indent=1, ensure_ascii=False) + "\n")
    figure = source.with_suffix(".png")
    if not figure.exists():
        return [target]
    shutil.copyfile(figure, folder / "toy.png")
    return [target, folder / "toy.png"]


def toy_claims(kept: Mapping[str, Any]) -> Iterator[Claim]:
    """What the paper's appendix says of the toy.

    Parameters
    ----------
    kept:
        What :func:`collect_toy` wrote.
    """
    known = {row["finding"]: row["value"] for row in paper_rows("findings.csv")}
    first = {(row["regime"], row["method"]): row for row in kept["summary"] if row["steps"] == FIRST}
    gap, gain, chance = (known[f"toy: {name}"] for name in ("gap", "gain", "crowded"))
    text = "the newest task's own-channel energy lies above the first task's, in energy units"
    yield Claim(text, f"about {gap}", f"{kept['gap']:.1f}", kept["gap"] > 0)
    best = max((row for (regime, _), row in first.items() if regime == "separated"), key=lambda row: row["gain"])
    text = f"separated classes: TOOD raises AUROC over the first {FIRST} steps (its best form)"
    ours = f"{100 * best['gain']:+.1f} ± {100 * best['gain_std']:.1f} ({best['method']})"
    yield Claim(text, f"up to +{gain}", ours, best["gain"] > best["gain_std"])
    energy = 100 * first["crowded", "energy"]["avg_auroc"]
    text = "overlapping classes: energy is at chance"
    yield Claim(text, f"about {chance}", f"{energy:.1f}", abs(energy - 50) < 5)
    gains = [100 * row["gain"] for (regime, method), row in first.items() if regime == "crowded" and method != "energy"]
    text = "overlapping classes: TOOD gives nothing back"
    yield Claim(text, "about 0", f"{min(gains):+.1f} to {max(gains):+.1f}", max(gains) < 1)
    for regime, words, expected in (
        ("separated", "separated classes: the margin helps", "helps"),
        ("crowded", "overlapping classes: the margin does not help", "saturates, then hurts"),
    ):
        along = [100 * value for value in kept["margins"][regime]]
        change, place = max(along) - along[0], along.index(max(along))
        ours = f"{along[-1] - along[0]:+.1f} at weight 1, at best {change:+.1f} (weight {place / (len(along) - 1):g})"
        yield Claim(words, expected, ours, (change > 0.5) == (expected == "helps"))


def _average(square: list[list[float | None]]) -> float:
    """Average AUROC of a ``[T, T]`` matrix, as elsewhere: over the tasks seen, then over steps."""
    values = np.array(square, dtype=np.float64)[:FIRST, :FIRST]
    return float(np.nanmean(np.nanmean(values, axis=1)))

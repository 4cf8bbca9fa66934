"""The paper's claims about its toy experiment, checked on ours."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from results_pages.agreement import Claim
from tood.paper.reference import table_rows
from tood.paper.toy_results import FIRST

__all__ = ["toy_claims"]


def toy_claims(kept: Mapping[str, Any]) -> Iterator[Claim]:
    """Claims of the paper's appendix about the toy experiment.

    Parameters
    ----------
    kept:
        The JSON that :func:`tood.paper.toy_results.collect_toy` wrote.
    """
    known = {row["finding"]: row["value"] for row in table_rows("findings.csv")}
    first = {(row["regime"], row["method"]): row for row in kept["summary"] if row["steps"] == FIRST}
    gap, gain, chance = (known[f"toy: {name}"] for name in ("gap", "gain", "crowded"))
    text = "the newest task's own-channel energy exceeds the first task's (mean over steps), by half to twice as much"
    yield Claim(text, f"about {gap}", f"{kept['gap']:.1f}", 0.5 < kept["gap"] / float(gap) < 2)
    forms = [row for (regime, method), row in first.items() if regime == "separated" and method != "energy"]
    best, worst = (pick(forms, key=lambda row: row["gain"]) for pick in (max, min))
    text = f"separated classes: TOOD raises AUROC over the first {FIRST} steps"
    yield Claim(text, f"up to +{gain}", f"{_gain(worst)} to {_gain(best)}", best["gain"] > best["gain_std"])
    energy = 100 * first["crowded", "energy"]["avg_auroc"]
    text = "overlapping classes: energy is at chance"
    yield Claim(text, f"about {chance}", f"{energy:.1f}", abs(energy - 50) < 5)
    gains = [100 * row["gain"] for (regime, method), row in first.items() if regime == "crowded" and method != "energy"]
    text = "overlapping classes: TOOD restores nothing"
    yield Claim(text, "about 0", f"{min(gains):+.1f} to {max(gains):+.1f}", max(gains) < 1)
    change = {regime: [100 * (value - along[0]) for value in along] for regime, along in kept["margins"].items()}
    ours = {regime: f"{along[-1]:+.1f} at weight 1, at best {max(along):+.1f}" for regime, along in change.items()}
    yield Claim("separated classes: the margin helps", "helps", ours["separated"], max(change["separated"]) > 0.5)
    text = "overlapping classes: the margin saturates, then hurts"
    yield Claim(text, "stated", ours["crowded"], max(change["crowded"]) < 0.5 and change["crowded"][-1] < 0)


def _gain(row: Mapping[str, Any]) -> str:
    return f"{100 * row['gain']:+.1f} ± {100 * row['gain_std']:.1f} ({row['method']})"

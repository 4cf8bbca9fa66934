"""The figures of the toy as rows, CSV and JSON. AUROC and D_avg are in [0, 1], gaps in energy units."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from tood import __version__
from tood.metrics import mean_std
from tood.paper.toy import MARGINS, METHODS, REGIMES, Settings, ToyRun

__all__ = ["FIRST", "by_regime", "rows", "summarize", "to_csv", "to_json"]

FIRST = 5  # the steps over which the paper states its gain


def by_regime(results: Sequence[ToyRun]) -> dict[str, list[ToyRun]]:
    """The runs of each regime, seeds in their order."""
    return {name: found for name in REGIMES if (found := [r for r in results if r.regime == name])}


def rows(results: Sequence[ToyRun]) -> list[dict[str, Any]]:
    """A row for each regime, seed, method and number of steps; ``gain`` is over energy."""
    found = []
    for r in results:
        for method in METHODS:
            for steps in sorted({min(FIRST, len(r.accuracy)), len(r.accuracy)}):
                path = r.trajectory(method, steps)
                found.append(
                    {
                        "regime": r.regime,
                        "seed": r.seed,
                        "method": method,
                        "steps": steps,
                        "avg_auroc": path.average(),
                        "gain": path.average() - r.trajectory("energy", steps).average(),
                        "d_avg": path.average_forgetting(),
                    }
                )
    return found


def summarize(results: Sequence[ToyRun]) -> list[dict[str, Any]]:
    """The rows with mean and standard deviation over seeds, and ``by_step``: the mean AUROC at each of all steps."""
    groups: dict[tuple[str, str, int], list[dict[str, Any]]] = {}
    for row in rows(results):
        groups.setdefault((row["regime"], row["method"], row["steps"]), []).append(row)
    table = []
    for (regime, method, steps), of in groups.items():
        summary: dict[str, Any] = {"regime": regime, "method": method, "steps": steps, "seeds": len(of)}
        for name in ("avg_auroc", "gain", "d_avg"):
            summary[name], summary[f"{name}_std"] = (float(x) for x in mean_std([row[name] for row in of]))
        paths = [r.trajectory(method).by_step() for r in results if r.regime == regime]
        table.append({**summary, "by_step": np.mean(paths, axis=0).tolist()})
    return table


def to_csv(results: Sequence[ToyRun]) -> str:
    """:func:`rows` as CSV."""
    text = io.StringIO()
    table = rows(results)
    writer = csv.DictWriter(text, list(table[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(table)
    return text.getvalue()


def to_json(results: Sequence[ToyRun], settings: Settings | None = None) -> str:
    """Every figure with the settings that made it; null where a task is not seen yet."""
    document = {
        "format": 1,
        "tood": __version__,
        "settings": asdict(settings or Settings()),
        "regimes": {name: asdict(regime) for name, regime in REGIMES.items()},
        "margins": MARGINS,
        "summary": summarize(results),
        "runs": [{name: _plain(value) for name, value in vars(r).items()} for r in results],
    }
    return json.dumps(document, indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _plain(inner) for name, inner in value.items()}
    if isinstance(value, np.ndarray):
        plain = value.astype(object)
        plain[np.isnan(value)] = None
        return plain.tolist()
    return value

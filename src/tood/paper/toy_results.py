"""Results of the toy experiment: rows, tables, CSV, JSON. AUROC and D_avg are in [0, 1], gaps in energy units."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from tood import __version__
from tood.errors import ToodError
from tood.files import csv_text, write_text
from tood.metrics import Trajectory, mean_std
from tood.paper.toy import MARGINS, METHODS, REGIMES, Settings, ToyRun
from tood.report.summary import Summary
from tood.report.tables import Cell, Column, Table

__all__ = ["FIRST", "by_regime", "collect_toy", "rows", "summarize", "tables", "to_csv", "to_json"]

FIRST = 5  # the number of steps over which the paper states its gain
COLUMNS = {"avg": "avg_auroc", "gain": "gain", "D_avg": "d_avg"}


def by_regime(results: Sequence[ToyRun]) -> dict[str, list[ToyRun]]:
    """The runs of each regime, in the order of their seeds."""
    return {name: own for name in REGIMES if (own := [r for r in results if r.regime == name])}


def rows(results: Sequence[ToyRun]) -> list[dict[str, Any]]:
    """One row per regime, seed, method and number of steps; ``gain`` is over energy."""
    table = []
    for r in results:
        for method in METHODS:
            for steps in sorted({min(FIRST, len(r.accuracy)), len(r.accuracy)}):
                path = r.trajectory(method, steps)
                table.append(
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
    return table


def summarize(results: Sequence[ToyRun]) -> list[dict[str, Any]]:
    """The rows averaged over seeds, with standard deviations, and ``by_step``: the mean AUROC at each step."""
    groups: dict[tuple[str, str, int], list[dict[str, Any]]] = {}
    for row in rows(results):
        groups.setdefault((row["regime"], row["method"], row["steps"]), []).append(row)
    table = []
    for (regime, method, steps), seeds in groups.items():
        summary: dict[str, Any] = {"regime": regime, "method": method, "steps": steps, "seeds": len(seeds)}
        for name in ("avg_auroc", "gain", "d_avg"):
            summary[name], summary[f"{name}_std"] = (float(x) for x in mean_std([row[name] for row in seeds]))
        paths = [r.trajectory(method).by_step() for r in results if r.regime == regime]
        table.append({**summary, "by_step": np.mean(paths, axis=0).tolist()})
    return table


def tables(results: Sequence[ToyRun]) -> list[Table]:
    """One table per regime for the terminal: Avg AUROC, gain over energy and D_avg, in percent."""
    summary = summarize(results)
    shown = []
    for regime, own in by_regime(results).items():
        steps = sorted({row["steps"] for row in summary})
        columns = [Column(f"first {n}" if n == FIRST else f"all {n}", c) for n in steps for c in COLUMNS]
        lines = tuple((method, tuple(_cells(summary, regime, method))) for method in METHODS)
        channel = np.mean([r.own_channel[t, :t].mean() for r in own for t in range(1, len(r.accuracy))])
        note = f"AUROC of old tasks by their own channel alone: {100 * channel:.0f} % (50 %: the channel is dead)."
        title = f"{regime.replace('_', ' ')}: Avg AUROC in % over steps, {len(own)} seed{'s' * (len(own) > 1)}"
        shown.append(Table(regime, title, tuple(columns), lines, (note, *_gap_note(regime, own)), "score"))
    return shown


def _cells(summary: list[dict[str, Any]], regime: str, method: str) -> list[Cell]:
    own = [row for row in summary if (row["regime"], row["method"]) == (regime, method)]
    return [
        Cell(Summary(100 * row[name], 100 * row[f"{name}_std"], row["seeds"] if name == "avg_auroc" else 1))
        for row in sorted(own, key=lambda row: int(row["steps"]))
        for name in COLUMNS.values()
    ]


def _gap_note(regime: str, own: Sequence[ToyRun]) -> list[str]:
    if regime != "separated":
        return []
    before, shifted, anchored = (
        np.mean([r.gap[name][1:] for r in own]) for name in ("before", "mean_shift", "robust_anchor")
    )
    return [
        f"Confidence gap (mean own-channel energy, newest minus first task): {before:.1f} energy units before, "
        f"{shifted:.1f} after mean shift, {anchored:.1f} after robust anchor."
    ]


def to_csv(results: Sequence[ToyRun]) -> str:
    """:func:`rows` as CSV."""
    return csv_text(rows(results))


def to_json(results: Sequence[ToyRun], settings: Settings | None = None) -> str:
    """All measurements and the settings that produced them; null for tasks not yet learned."""
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


def collect_toy(out: Path, folder: Path, commit: str) -> list[Path]:
    """Copy figure and summary of ``out/toy`` to ``folder``; returns the files written, none if unchanged."""
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
            regime: [float(np.mean(values)) for values in zip(*map(_margin_averages, own), strict=True)]
            for regime in document["regimes"]
            if (own := [run for run in runs if run["regime"] == regime])
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


def _margin_averages(run: dict[str, Any]) -> list[float]:
    """Average AUROC over the first steps at each margin."""
    matrices = np.array(run["margins"], dtype=np.float64)
    return [Trajectory(matrix[:FIRST, :FIRST]).average() for matrix in matrices]

"""Results of the toy experiment: rows, tables, CSV, JSON. AUROC and D_avg are in [0, 1], gaps in energy units."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from tood import __version__
from tood.metrics import mean_std
from tood.paper.toy import MARGINS, METHODS, REGIMES, Settings, ToyRun
from tood.report.summary import Summary
from tood.report.tables import Column, Table, TableCell
from tood.storage.files import csv_text, for_json, write_text

__all__ = ["FIRST", "by_regime", "margin_averages", "rows", "summarize", "tables", "to_json", "write_toy"]

FIRST = 5  # the number of steps over which the paper states its gain
MEASURES = {"avg": "avg_auroc", "gain": "gain", "D_avg": "d_avg"}


def by_regime(results: Iterable[ToyRun]) -> dict[str, list[ToyRun]]:
    """The runs of each regime, in the order of their seeds."""
    results = list(results)
    return {name: own for name in REGIMES if (own := [r for r in results if r.regime == name])}


def rows(results: Iterable[ToyRun]) -> list[dict[str, Any]]:
    """One row per regime, seed, method and number of steps; ``gain`` is over energy."""
    table = []
    for r in results:
        for method in METHODS:
            for steps in sorted({min(FIRST, len(r.accuracy)), len(r.accuracy)}):
                path, plain = r.trajectory(method, steps), r.trajectory("energy", steps)
                row = {"regime": r.regime, "seed": r.seed, "method": method, "steps": steps}
                row |= {"avg_auroc": path.average(), "gain": path.average() - plain.average()}
                table.append(row | {"d_avg": path.average_forgetting()})
    return table


def summarize(results: Sequence[ToyRun]) -> list[dict[str, Any]]:
    """The rows averaged over seeds, with standard deviations, and ``by_step``: the mean AUROC at each step."""
    groups: dict[tuple[str, str, int], list[dict[str, Any]]] = {}
    for row in rows(results):
        groups.setdefault((row["regime"], row["method"], row["steps"]), []).append(row)
    table = []
    for (regime, method, steps), seeds in groups.items():
        summary: dict[str, Any] = {"regime": regime, "method": method, "steps": steps, "seeds": len(seeds)}
        for name in MEASURES.values():
            summary[name], summary[f"{name}_std"] = (float(x) for x in mean_std([row[name] for row in seeds]))
        paths = [r.trajectory(method).by_step() for r in results if r.regime == regime]
        table.append({**summary, "by_step": np.mean(paths, axis=0).tolist()})
    return table


def margin_averages(run: ToyRun) -> list[float]:
    """Average AUROC of robust anchor over the first steps at each margin."""
    return [run.trajectory(f"robust anchor, λ={margin:g}", FIRST).average() for margin in MARGINS]


def tables(results: Sequence[ToyRun]) -> list[Table]:
    """One table per regime for the terminal: Avg AUROC, gain over energy and D_avg, in percent."""
    shown = []
    for regime, own in by_regime(results).items():
        cells: dict[str, list[TableCell]] = {method: [] for method in METHODS}
        summary = sorted(summarize(own), key=lambda row: int(row["steps"]))
        for row in summary:
            for name in MEASURES.values():
                seeds = row["seeds"] if name == "avg_auroc" else 1  # only Avg AUROC is shown with its deviation
                cells[row["method"]].append(TableCell(Summary(100 * row[name], 100 * row[f"{name}_std"], seeds)))
        steps = dict.fromkeys(row["steps"] for row in summary)
        columns = [Column(f"first {n}" if n == FIRST else f"all {n}", name) for n in steps for name in MEASURES]
        channel = np.mean([r.own_channel[t, :t].mean() for r in own for t in range(1, len(r.accuracy))])
        notes = [f"AUROC of old tasks by their own channel alone: {100 * channel:.0f} % (50 %: the channel is dead)."]
        if regime == "separated":
            gaps = (f"{name} {np.mean([r.gap[name][1:] for r in own]):.1f}" for name in own[0].gap)
            notes.append(f"Confidence gap (own-channel energy, newest minus first task): {', '.join(gaps)}.")
        title = f"{regime.replace('_', ' ')}: Avg AUROC in % over steps, {len(own)} seed{'s' * (len(own) > 1)}"
        lines = tuple((method, tuple(of_method)) for method, of_method in cells.items())
        shown.append(Table(regime, title, tuple(columns), lines, tuple(notes), "score"))
    return shown


def to_json(results: Sequence[ToyRun], settings: Settings | None = None) -> str:
    """All measurements and the settings that produced them; null for tasks not yet learned."""
    regimes = by_regime(results)
    document = {
        "format": 1,
        "tood": __version__,
        "settings": asdict(settings or Settings()),
        "regimes": {name: asdict(REGIMES[name]) for name in regimes},
        "margins": MARGINS,
        "summary": summarize(results),
        "gap": float(np.mean([r.gap["before"][1:] for r in regimes["separated"]])),
        "margin_averages": {name: np.mean([*map(margin_averages, own)], axis=0) for name, own in regimes.items()},
        "runs": [vars(r) for r in results],
    }
    return json.dumps(for_json(document), indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def write_toy(results: Sequence[ToyRun], out: Path) -> list[Path]:
    """Write ``toy.csv`` and ``toy.json``; returns the files."""
    out.mkdir(parents=True, exist_ok=True)
    files = {out / "toy.csv": csv_text(rows(results)), out / "toy.json": to_json(results)}
    for path, text in files.items():
        write_text(path, text)
    return list(files)

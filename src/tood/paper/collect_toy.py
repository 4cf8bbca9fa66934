"""What docs/results keeps of a ``toy.json``."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np

from tood.errors import ToodError
from tood.files import write_text
from tood.metrics import Trajectory
from tood.paper.toy_tables import FIRST

__all__ = ["collect_toy"]


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
                float(np.mean([_average(run["margins"][k]) for run in runs if run["regime"] == regime]))
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


def _average(square: list[list[float | None]]) -> float:
    """Average AUROC of a ``[T, T]`` matrix over the first steps."""
    return Trajectory(np.array(square, dtype=np.float64)[:FIRST, :FIRST]).average()

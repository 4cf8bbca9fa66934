"""Markdown of tables, words and plots on the results pages."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from tood.report.appearance import label

__all__ = ["drawings", "link", "quoted", "spread_of", "table"]

OVER_LEARNERS = {
    "drift": "feature drift against both kinds of forgetting (cka)",
    "forgetting-accuracy": "OOD forgetting against accuracy",
    "buffer-size": "calibration size (buffer_ablation)",
    "margin": "margin weight (ablation_lambda)",
    "mechanism": "TOOD, temperature and prototypes (mechanism_dissociation)",
}
OF_ONE = {  # files are named learner-plot
    "task0": "first task along the stream (main_panel)",
    "ridges": "score distributions per step (ridge)",
    "nearest": "distance of OOD samples to the ID features (nn_distance)",
    "nearest-relative": "the same in units of the distance between ID samples",
}


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    """The lines of a table and an empty line; a sentence instead if there are no rows."""
    rows = list(rows)
    for row in (head, ["---"] * len(head), *rows) if rows else ():
        yield f"| {' | '.join(row)} |"
    yield from ([""] if rows else ["Nothing to compare yet.", ""])


def quoted(names: Iterable[str]) -> str:
    """Names as code, separated by commas."""
    return ", ".join(f"`{name}`" for name in names)


def spread_of(values: Iterable[float], form: str = ".1f") -> str:
    """Mean ± standard deviation over seeds; a dash without values."""
    import numpy as np

    seeds = list(values)
    deviation = f" ± {np.std(seeds, ddof=1):.1f}" if len(seeds) > 1 else ""
    return f"{np.mean(seeds):{form}}{deviation}" if seeds else "–"


def drawings(folder: Path, out: Path) -> Iterator[str]:
    """Every plot of a folder with its caption, plots of one learner first; links are relative to ``out``."""
    of_one = [(file, kind) for kind in OF_ONE for file in sorted(folder.glob(f"*-{kind}.png"))]
    of_all = [(file, kind) for kind in OVER_LEARNERS if (file := folder / f"{kind}.png").exists()]
    for file, kind in (*of_one, *of_all):
        learner = f", {label(file.stem.removesuffix(f'-{kind}'))}" if kind in OF_ONE else ""
        text = f"{folder.name}{learner}: {(OF_ONE | OVER_LEARNERS)[kind]}"
        yield from (f"![{text}]({link(file, out)})", "", f"*{text}*", "")


def link(file: Path, out: Path) -> str:
    """The path of a file relative to the folder of the page."""
    return Path(os.path.relpath(file, out)).as_posix()

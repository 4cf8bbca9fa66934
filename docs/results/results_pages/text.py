"""The tables of the page about text, from the collected CSV files: ``python -m results_pages.text METRICS PAGE``."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from results_pages.frozen import FrozenRuns, Setting
from results_pages.markdown import spread_of, table
from tood.report.appearance import label
from tood.report.tables import TOOD_VARIANTS
from tood.storage.files import write_text

__all__ = ["fill_text"]

SHOWN = ("energy", "tood", *TOOD_VARIANTS, "typicality", "ananc", "rmds")
BACKBONE = " (backbone features)"
SUMS = ("clinc", "slda (track=all)")  # fitted on every training sentence seen, whose vectors are the features
EVERY = ("er", "finetune")  # learners measured with every detector


def fill_text(metrics: Path, page: Path) -> None:
    """Replace the tables between ``<!-- NAME -->`` and ``<!-- end -->``."""
    found = FrozenRuns(metrics, "text")

    def mean(setting: Setting, name: str, metric: str = "avg_auroc") -> float:
        values = list(found.seeds(setting, name, metric).values())
        return float(np.mean(values)) if values else float("nan")

    rows = []
    for setting in (setting for setting in found.settings() if setting != SUMS):
        cells = [spread_of(found.seeds(setting, name).values()) for name in SHOWN]
        cells[int(np.nanargmax([mean(setting, name) for name in SHOWN]))] += " *"
        lost = " → ".join(f"{mean(setting, name, 'd_avg'):.1f}" for name in SHOWN[:2])
        about = (spread_of(found.of_run(setting, "accuracy")), f"{found.value(setting, 'gap'):.1f}")
        rows.append((label(setting[1]), *about, *cells, lost))
    _fill(page, "learners", table(("learner", "accuracy", "gap", *map(label, SHOWN), "D_avg: energy → TOOD"), rows))

    few, rows = ("clinc", EVERY[0]), []
    for name in sorted(
        (n for *s, n in found.scores if tuple(s) == SUMS and n != "energy"), key=lambda n: -mean(SUMS, n)
    ):
        pairs = ((few, name + BACKBONE), (SUMS, name))
        three = [f"{mean(*pair, metric):.1f}" for pair in pairs for metric in ("avg_auroc", "near_auroc", "far_auroc")]
        rows.append((label(name), *(cell.replace("nan", "–") for cell in three)))
    heads = (f"{which}: {what}" for which in ("10 sentences", "all sentences") for what in ("Avg AUROC", "near", "far"))
    _fill(page, "backbone", table(("detector", *heads), rows))

    rows = []
    for learner in EVERY:
        means = {name: mean(("clinc", learner), name) for *s, name in found.scores if tuple(s) == ("clinc", learner)}
        order = sorted((name for name in means if BACKBONE not in name), key=lambda name: -means[name])
        best = ", ".join(f"{label(name)} {means[name]:.1f}" for name in order[:6])
        where = (f"{label(name)} {order.index(name) + 1}" for name in ("tood", "energy"))
        rows.append((label(learner), best, f"{', '.join(where)} of {len(order)}"))
    _fill(page, "detectors", table(("learner", "the best on trained features", "places"), rows))


def _fill(page: Path, name: str, lines: Iterable[str]) -> None:
    before, start, rest = page.read_text(encoding="utf-8").partition(f"<!-- {name} -->")
    text = "\n".join(lines).rstrip()
    write_text(page, f"{before}{start}\n\n{text}\n\n{rest[rest.index('<!-- end -->') :]}")


if __name__ == "__main__":
    fill_text(*map(Path, sys.argv[1:]))

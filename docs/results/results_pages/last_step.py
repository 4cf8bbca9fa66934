"""Every detector at the last step of the runs on frozen pretrained features, from one CSV file."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
from scipy.stats import rankdata

from results_pages.markdown import grid
from results_pages.pretrained_data import STREAMS, Setting, read_csv
from tood.report.appearance import label
from tood.report.tables import place

__all__ = ["FILE", "every_detector"]

FILE = "pretrained-last-step.csv"  # one line per run and detector; `benchmarks/newer_detectors.py --csv` writes them


def every_detector(folder: Path) -> Iterator[str]:
    """Table: mean rank and mean AUROC over learners at the last step, per stream, of every detector."""
    values: dict[Setting, dict[str, list[float]]] = {}
    seeds: dict[Setting, set[str]] = {}
    for row in read_csv(folder / FILE):
        setting = row["stream"], row["learner"]
        values.setdefault(setting, {}).setdefault(row["detector"], []).append(float(row["auroc"]))
        seeds.setdefault(setting, set()).add(row["seed"])
    if not values:
        return
    ranks: dict[Setting, dict[str, float]] = {}
    for setting, of in values.items():
        means = {name: float(np.mean(aurocs)) for name, aurocs in of.items()}
        ranks[setting] = dict(zip(means, rankdata([-value for value in means.values()]), strict=True))
    streams = sorted({stream for stream, _ in values}, key=lambda name: (place(name, STREAMS), name))
    names = sorted({name for of in values.values() for name in of})
    overall = {name: np.mean([of[name] for of in ranks.values() if name in of]) for name in names}
    rows = []
    for name in sorted(names, key=lambda name: overall[name]):
        row = [label(name), f"{overall[name]:.1f}"]
        for stream in streams:
            own = [s for s in values if s[0] == stream and name in values[s]]
            if own:
                row += [
                    f"{np.mean([ranks[s][name] for s in own]):.1f}",
                    f"{np.mean([np.mean(values[s][name]) for s in own]):.1f}",
                ]
            else:
                row += ["–", "–"]
        rows.append(row)
    counts = ", ".join(f"{stream} {sum(s[0] == stream for s in values)}" for stream in streams)
    most = max(map(len, seeds.values()))
    yield "\n## Every detector at the last step\n"
    yield (
        f"All {len(names)} detectors that need no images, with their defaults, at the last step of each stream. AUROC "
        "is (mean of near + mean of far) / 2, mean over tasks, in percent. Detectors are ranked within each setting "
        f"(stream × learner). The table shows means over learners ({counts}; "
        f"{'one seed' if most == 1 else f'up to {most} seeds'} each, BiC's corrected logits), sorted by the mean rank "
        "over all settings.\n"
    )
    yield (
        "Made by `python benchmarks/newer_detectors.py RUNS --steps 1 --csv "
        f"docs/results/metrics/{FILE}` from runs that keep their outputs.\n"
    )
    heads = [head for stream in streams for head in (f"{stream}: rank", "AUROC")]
    yield from grid(("detector", "mean rank", *heads), rows)

"""The benchmark on frozen features by track: what every detector is fitted on is the same for all.

``python -m results_pages.tracks RUNS…`` adds finished runs to ``metrics/pretrained-tracks.csv`` and fills the page.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np

from results_pages.frozen import METRICS, add_lines, read_csv
from results_pages.markdown import fill, table
from tood.evaluation import load_metrics
from tood.outputs import Run, find_runs
from tood.report.appearance import label
from tood.report.summary import run_figures

__all__ = ["TRACKS", "collect_tracks", "track_blocks"]

TRACKS = "pretrained-tracks.csv"
STREAMS = {"cifar10": "CIFAR-10, 5 tasks", "cifar100": "CIFAR-100, 10 tasks"}


def collect_tracks(runs: Iterable[Run], metrics: Path) -> None:
    """Add the values of each detector in each track to the CSV file."""
    lines = []
    for run in runs:
        measured, who = load_metrics(run.path), run.identity
        tracks = set(run.manifest.get("tracks") or ()) & set(measured["calibration"].to_pylist())
        for track in sorted(tracks):
            figures = run_figures(measured, track)
            for name in sorted({name for name, _ in figures if name != "-"}):
                values = {metric: f"{figures[name, metric]:.2f}" for metric in METRICS if (name, metric) in figures}
                said = {"stream": who.stream, "learner": who.method, "seed": who.seed, "track": track}
                lines.append({**said, "detector": name, **values})
    add_lines(metrics / TRACKS, lines)


def track_blocks(metrics: Path) -> dict[str, Iterable[str]]:
    """The table of the page, by the name of its place."""
    return {"tracks": _tracks(metrics)}


def _tracks(metrics: Path) -> Iterator[str]:
    """Mean rank and mean Avg AUROC of each detector, per stream and track, over settings that have all detectors."""
    values: dict[tuple[str, str], dict[tuple[str, str], dict[str, float]]] = {}  # place -> learner, seed -> detector
    for row in read_csv(metrics / TRACKS):
        if "(" not in row["detector"]:  # not BiC's raw logits
            place = values.setdefault((row["stream"], row["track"]), {})
            place.setdefault((row["learner"], row["seed"]), {})[row["detector"]] = float(row["avg_auroc"])
    names = sorted({name for runs in values.values() for own in runs.values() for name in own})
    heads, columns, means = ["detector"], [], []
    for (stream, track), runs in sorted(values.items()):
        complete = [[own[name] for name in names] for own in runs.values() if len(own) == len(names)]
        if not complete:
            continue
        found = np.array(complete)
        ranks = (1 + (found[:, None] > found[:, :, None]).sum(axis=2)).mean(axis=0)
        heads.append(f"{STREAMS.get(stream, stream)}, {track}: AUROC (mean rank of {len(found)} runs)")
        columns.append([f"{mean:.1f} ({rank:.1f})" for mean, rank in zip(found.mean(axis=0), ranks, strict=True)])
        means.append(ranks)
    order = np.argsort(np.mean(means, axis=0)) if means else []
    yield from table(heads, [(label(names[i]), *(column[i] for column in columns)) for i in order])
    for stream in sorted({stream for stream, _ in values}):
        seeds: dict[str, set[str]] = {}
        for learner, seed in values.get((stream, "calibration"), {}):
            seeds.setdefault(seed, set()).add(learner)
        said = "; ".join(f"seed {seed}: {', '.join(sorted(map(label, of)))}" for seed, of in sorted(seeds.items()))
        yield from ("", f"Measured so far on {STREAMS.get(stream, stream)}: {said}.")


if __name__ == "__main__":
    home = Path(__file__).parents[1]
    collect_tracks([run for run in find_runs(sys.argv[1:]) if run.metrics_path.exists()], home / "metrics")
    print(fill(home / "index.md", track_blocks(home / "metrics")))

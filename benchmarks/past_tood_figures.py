"""The figures of docs/results/past-tood.md, from what runs measured.

    python benchmarks/past_tood_figures.py [--out docs/images] RUN_OR_PARENT ...

Reads the metrics of finished runs (`tood run`, `tood audit`, or what `tood reproduce --collect` kept), no outputs.
"Better TOOD" is the better of mean shift and robust anchor (λ = 0.5) on each run, picked with hindsight.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from matplotlib.figure import Figure

from tood.metrics import Trajectory
from tood.report.figures.style import CYCLE, MARKERS, caption, grid, label, save, step_axis, styled
from tood.report.summary import learner_label
from tood.runs.directory import Run, find_runs
from tood.runs.metrics_file import load_metrics, trajectory

SCORES = {  # name: colour, marker
    "energy": ("#CC79A7", "o"),
    "better TOOD": ("#009E73", "s"),
    "typicality": ("#56B4E9", "^"),
    "tood_joint": ("#0072B2", "D"),
}
NEW = ("typicality", "tood_joint")


class Measured(NamedTuple):
    """A run and the AUROC trajectory of each score."""

    run: Run
    scores: dict[str, Trajectory]

    def average(self, score: str, group: str | None = None) -> float:
        """Avg AUROC in percent, of one group of OOD sets or balanced over both."""
        found = self.scores[score]
        return 100 * (found.group(group) if group else found.balanced()).average()

    def gain(self, score: str, group: str) -> float:
        """Over the best of energy and the better TOOD."""
        return self.average(score, group) - max(self.average(known, group) for known in ("energy", "better TOOD"))


def measured(run: Run) -> Measured:
    """What the metrics of a run say."""
    table, source = load_metrics(run.path), run.calibration
    scores = {
        name: trajectory(table, name, calibration=source if name != "energy" else None) for name in ("energy", *NEW)
    }
    toods = [trajectory(table, f"tood_{variant}", calibration=source) for variant in ("mean_shift", "robust_anchor")]
    scores["better TOOD"] = max(toods, key=lambda one: one.balanced().average())
    return Measured(run, scores)


def by_stream(runs: Sequence[Measured]) -> dict[str, list[Measured]]:
    """Runs of each stream, in the order streams come."""
    found: dict[str, list[Measured]] = {}
    for one in runs:
        found.setdefault(one.run.stream, []).append(one)
    return found


@styled
def averages(runs: Sequence[Measured]) -> Figure:
    """A line a learner: Avg AUROC of each score, the mean over seeds."""
    panels = {
        stream: {name: [one for one in own if learner_label(one.run) == name] for name in names}
        for stream, own in by_stream(runs).items()
        if (names := dict.fromkeys(learner_label(one.run) for one in own))
    }
    rows = [len(panel) + 1.5 for panel in panels.values()]
    figure, axes = grid(len(panels), 1, 0.17 * sum(rows) + 0.6, sharex=True, height_ratios=rows)
    for ax, (stream, panel) in zip(axes[:, 0], panels.items(), strict=True):
        for place, own in enumerate(panel.values()):
            values = {name: float(np.mean([one.average(name) for one in own])) for name in SCORES}
            ax.plot([min(values.values()), max(values.values())], [place] * 2, color="#CCCCCC", linewidth=1, zorder=1)
            for name, (colour, marker) in SCORES.items():
                ax.plot(values[name], place, marker, color=colour, label=name if place == 0 else None)
        labels = [label(name) + f" ({len(own)})" * (len(own) > 1) for name, own in panel.items()]
        ax.set_yticks(range(len(panel)), labels)
        ax.set(title=stream, ylim=(len(panel) - 0.4, -0.6))
    axes[-1, 0].set_xlabel("Avg AUROC (%)")
    figure.legend(*axes[0, 0].get_legend_handles_labels(), ncols=len(SCORES), loc="outside upper center")
    caption(figure, "Near and far sets weigh the same. In brackets: seeds, where there are several (mean).")
    return figure


@styled
def along_the_stream(runs: Sequence[Measured]) -> Figure:
    """AUROC at each step, the mean over runs, with the middle half of the runs as a band."""
    streams = by_stream(runs)
    figure, axes = grid(1, len(streams), 2.6)
    for ax, (stream, own) in zip(axes[0], streams.items(), strict=True):
        for name, (colour, marker) in SCORES.items():
            values = 100 * np.stack([one.scores[name].balanced().by_step() for one in own])
            steps = np.arange(values.shape[1])
            ax.plot(steps, values.mean(axis=0), marker=marker, color=colour, label=name)
            ax.fill_between(steps, *np.quantile(values, [0.25, 0.75], axis=0), color=colour, alpha=0.15, linewidth=0)
        step_axis(ax, values.shape[1])
        ax.set_title(f"{stream}, {len(own)} run{'s' * (len(own) > 1)}")
    axes[0, 0].set_ylabel("AUROC of all tasks seen (%)")
    figure.legend(*axes[0, 0].get_legend_handles_labels(), ncols=len(SCORES), loc="outside upper center")
    caption(figure, "Lines: mean over runs. Bands: from the lower to the upper quartile.")
    return figure


@styled
def near_and_far(runs: Sequence[Measured]) -> Figure:
    """A point a run: what is gained over the best of energy and TOOD, near against far."""
    figure, axes = grid(1, len(NEW), 3.0, sharex=True, sharey=True)
    for ax, name in zip(axes[0], NEW, strict=True):
        for place, (stream, own) in enumerate(by_stream(runs).items()):
            gains = [[one.gain(name, group) for one in own] for group in ("near", "far")]
            ax.plot(*gains, MARKERS[place], color=CYCLE[place], alpha=0.8, label=stream)
        ax.axhline(0, color="#404040", linewidth=0.8)
        ax.axvline(0, color="#404040", linewidth=0.8)
        ax.set(title=name, xlabel="near-OOD (points)")
    axes[0, 0].set_ylabel("far-OOD (points)")
    axes[0, -1].legend()
    caption(figure, "Avg AUROC of a run minus the best of energy and the better TOOD on the same sets.")
    return figure


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", metavar="RUN_OR_PARENT")
    parser.add_argument("--out", type=Path, default=Path("docs/images"))
    options = parser.parse_args()
    runs = [measured(run) for run in find_runs(options.runs) if (run.path / "metrics.parquet").exists()]
    options.out.mkdir(parents=True, exist_ok=True)
    for draw in (averages, along_the_stream, near_and_far):
        stem = options.out / f"past-tood-{draw.__name__.replace('_', '-')}"
        print(save(draw(runs), stem)[0])


if __name__ == "__main__":
    main()

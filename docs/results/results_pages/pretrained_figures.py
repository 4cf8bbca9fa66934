"""Figures of the page about frozen pretrained features."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from results_pages.drawings import drawings
from results_pages.pretrained_data import Table
from tood.report.appearance import label
from tood.report.tables import LEARNERS

__all__ = ["figures"]

AXES = {
    "gap": "confidence gap at the last step (energy of the newest task above old ones)",
    "gain": "mean shift − energy, Avg AUROC",
    "drift": "feature drift, 1 - CKA",
    "accuracy_forgetting": "accuracy forgetting",
    "d_avg": "D_avg of energy",
}


def figures(table: Table, folder: Path) -> Iterator[str]:
    """Scatter plots with one point per setting: gain by confidence gap, and both kinds of forgetting by drift."""
    drawn = {
        "gap": ("Gain against the confidence gap", [("gap", "gain")]),
        "drift": ("Feature drift against forgetting", [("drift", "accuracy_forgetting"), ("drift", "d_avg")]),
    }
    for name, (title, panels) in drawn.items():
        scatter(table, panels, folder / "figures" / f"pretrained-{name}.png")
        yield f"\n## {title}\n"
        yield f"![One point per stream and learner.](metrics/figures/pretrained-{name}.png)\n"
    if lines := list(drawings(folder / "figures" / "pretrained", folder.parent)):
        yield "\n## Figures\n"
        yield (
            "CIFAR-10 in 5 tasks, seed 0. Drawn by `tood report RUNS --figures`, and the ablations by "
            "`tood ablate RUNS --only buffer,margin,mechanism --draws 3`. In brackets: the name in the paper.\n"
        )
        yield from lines


def scatter(table: Table, panels: Sequence[tuple[str, str]], file: Path) -> None:
    """Draw one panel per pair of values, x and y; colours are learners, markers are streams."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt
    from matplotlib.lines import Line2D

    learners = list(dict.fromkeys(of for _, of in sorted(table.settings(), key=lambda s: s[1] not in LEARNERS)))
    colours = dict(zip(learners, plt.get_cmap("tab20").colors, strict=False))  # type: ignore[attr-defined]
    marks = dict(zip(table.streams(), "os^Dv*", strict=False))
    drawn, axes = plt.subplots(
        1, len(panels), figsize=(5.2 * len(panels) + 1.6, 4), layout="constrained", squeeze=False
    )
    shown = set()
    for plot, (x, y) in zip(axes[0], panels, strict=True):
        for setting in table.settings():
            place = (table.value(setting, x), table.value(setting, y))
            if np.isfinite(place).all():
                shown.add(setting[1])
                style = {"color": colours.get(setting[1], "0.5"), "marker": marks.get(setting[0], "x")}
                plot.scatter(*place, s=34, edgecolors="black", linewidths=0.4, **style)
        plot.axhline(0, color="0.6", linewidth=0.8, zorder=0)
        plot.set_xlabel(AXES[x], fontsize=8)
        plot.set_ylabel(AXES[y], fontsize=8)
    handles = [Line2D([], [], linestyle="", marker=marks[s], color="0.3", label=s) for s in marks]
    handles += [
        Line2D([], [], linestyle="", marker="s", color=colours.get(of, "0.5"), label=label(of))
        for of in learners
        if of in shown
    ]
    drawn.legend(handles=handles, loc="outside right upper", fontsize=7, frameon=False)
    file.parent.mkdir(parents=True, exist_ok=True)
    drawn.savefig(file, dpi=150)
    plt.close(drawn)

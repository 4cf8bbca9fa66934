"""Plots over learners: what OOD forgetting correlates with, and ablations."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure

from tood.metrics import mean_std
from tood.report.plots.style import COLOURS, Rows, caption, grid, label, styled

__all__ = ["buffer_size", "margin", "scatter"]

AXES = {
    "drift": "feature drift, 1 − CKA",
    "d_avg": "AUROC lost by the last step (points)",
    "f_avg": "accuracy lost by the last step (points)",
    "gap": "confidence gap, last step",
    "gain": "gain of mean shift (paper), points",
}
DRIFT = (("drift", "d_avg"), ("drift", "f_avg"))  # paper, Fig. cka
FEW = 6  # learners that are all named
MARKERS = "osD^vPX<>phd*8H"
MARGIN = 0.5  # the paper's, marked by a dashed line
MEASURES = {"avg_auroc": "Avg AUROC (%)", "d_avg": "AUROC lost (points)"}


@styled
def scatter(points: Rows, note: str = "", pairs: Iterable[tuple[str, str]] = DRIFT) -> Figure:
    """One point per learner, one panel per pair of values.

    Parameters
    ----------
    points:
        One row per run: ``learner`` and the values, ``drift`` in [0, 1], others in percent. Runs of one learner become
        one point, with error bars of one standard deviation.
    note:
        Caption below the panels.
    pairs:
        Names of the values on the x and y axes.
    """
    pairs = list(pairs)
    figure, panels = grid(1, len(pairs), 2.9)
    for axes, (x, y) in zip(panels[0], pairs, strict=True):
        xs, ys = (_average_by(points, "learner", name) for name in (x, y))
        values = {name: (xs[name][0], ys[name][0]) for name in xs}
        ends = {end(values, key=lambda name: values[name][place]) for end in (min, max) for place in (0, 1)}
        named = set(values) if len(values) <= FEW else ends
        lowest = min(values, key=lambda name: values[name][1])
        for name, (colour, marker) in _looks(values).items():
            bars = {"xerr": xs[name][1] or None, "yerr": ys[name][1] or None, "elinewidth": 0.7}
            colour = colour if name in named else "#A6A6A6"
            axes.errorbar(*values[name], **bars, fmt=marker, color=colour, markersize=5.5, zorder=2 + (name in named))
            if name in named:
                offset = (4, -11 if name == lowest else 5)
                axes.annotate(label(name), values[name], offset, textcoords="offset points")
        axes.set(xlabel=AXES[x], ylabel=AXES[y])
        axes.margins(0.14)
        axes.set(xlim=axes.get_xlim(), ylim=axes.get_ylim())  # the points set the limits, not the trend
        _trend(axes, *map(list, zip(*values.values(), strict=True)))
    text = "Coloured and named: the lowest and the highest of each axis." if len(values) > FEW else ""
    caption(figure, f"{note} {text}".strip())
    return figure


def _looks(names: Iterable[str]) -> dict[str, tuple[Any, str]]:
    """Colour and marker of each learner, in order of appearance."""
    return {
        name: (mpl.colormaps["tab20"](2 * place % 20 + (place // 10) % 2), MARKERS[place % len(MARKERS)])
        for place, name in enumerate(dict.fromkeys(names))
    }


def _average_by(rows: Rows, key: str, value: str) -> dict[Any, tuple[float, float]]:
    """Mean and sample standard deviation of ``value`` per value of ``key``, in order of appearance."""
    groups: dict[Any, list[float]] = {}
    for row in rows:
        groups.setdefault(row[key], []).append(float(row[value]))
    return {name: mean_std(values) for name, values in groups.items()}


def _trend(axes: Any, xs: list[float], ys: list[float]) -> None:
    """Write r, its 95 % interval and p as the panel's title; draw the least-squares line if p is below 0.05."""
    n = len(xs)
    if n < 3 or np.ptp(xs) == 0 or np.ptp(ys) == 0:
        axes.set_title(f"n = {n} learner{'s' * (n != 1)}: too few for r", loc="left", color=COLOURS["muted"])
        return
    from scipy.stats import pearsonr

    r, p = (float(x) for x in pearsonr(xs, ys))
    chance = "p < 0.001" if p < 0.001 else f"p = {p:.3f}"
    axes.set_title(f"r = {r:.2f}, {chance}, n = {n}".replace("-", "−"), loc="left")
    if p > 0.05:
        return
    ends = np.array([min(xs), max(xs)])
    slope, offset = np.polyfit(xs, ys, 1)
    axes.plot(ends, slope * ends + offset, color=COLOURS["muted"], linewidth=1, linestyle="--", zorder=1)


@styled
def buffer_size(table: Rows, default: int = 200, note: str = "") -> Figure:
    """Average AUROC and OOD forgetting by size B of the calibration set (paper, Fig. buffer_ablation).

    Parameters
    ----------
    table:
        One row per measurement: ``learner``, ``B`` (calibration samples over all tasks), ``seed``, and ``avg_auroc``
        and ``d_avg`` in percent. Lines are means over seeds, bands one standard deviation.
    default:
        The size in use, marked by a dashed line.
    note:
        Caption below the panels.
    """
    bands = "Bands: one standard deviation over draws of the calibration samples and over seeds."
    text = f"{note} {bands} Dashed: the size in use, {default}.".strip()
    figure = _curves(table, "B", "calibration samples B, all tasks together", default, text)
    sizes = sorted({row["B"] for row in table})
    for axes in figure.axes:
        axes.set_xscale("log")
        axes.set_xticks(sizes, [str(size) for size in sizes], rotation=45)
        axes.minorticks_off()
    return figure


@styled
def margin(table: Rows, note: str = "") -> Figure:
    """Average AUROC and OOD forgetting by margin λ (paper, Fig. ablation_lambda); a table as in :func:`buffer_size`."""
    return _curves(table, "margin", "margin λ", MARGIN, f"{note} Dashed: the margin in use, {MARGIN:g}.".strip())


def _curves(table: Rows, x: str, xlabel: str, default: float, note: str) -> Figure:
    """One line per learner, with a band of one standard deviation over seeds; one panel per measure."""
    figure, panels = grid(1, 2, 2.4)
    for axes, (measure, ylabel) in zip(panels[0], MEASURES.items(), strict=True):
        for learner, (colour, marker) in _looks(row["learner"] for row in table).items():
            averages = _average_by([row for row in table if row["learner"] == learner], x, measure)
            xs = sorted(averages)
            means, spreads = np.array([averages[value] for value in xs]).T
            axes.plot(xs, means, color=colour, marker=marker, label=label(learner))
            axes.fill_between(xs, means - spreads, means + spreads, color=colour, alpha=0.15, linewidth=0)
        axes.set(xlabel=xlabel, ylabel=ylabel)
        axes.axvline(default, color=COLOURS["muted"], linewidth=0.9, linestyle="--")
    figure.legend(*panels[0, 0].get_legend_handles_labels(), loc="outside right center")
    caption(figure, note)
    return figure

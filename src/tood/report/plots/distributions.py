"""Densities per step: scores of ID, near- and far-OOD samples, and distances of OOD samples from ID features."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from tood.arrays import Float64Array
from tood.report.plots.style import (
    ABOVE,
    COLOURS,
    Groups,
    caption,
    grid,
    label,
    spread,
    step_axis,
    styled,
    task_colours,
)

__all__ = ["density", "nearest_distances", "ridges"]

GROUPS = ("id", "near", "far")
TINT = "#CFE3F2"  # area below the density of ID scores
LINES = {"id": "-", "near": (0, (4, 1.5)), "far": (0, (1, 1))}


@styled
def ridges(panels: Mapping[str, Sequence[Groups]], note: str = "") -> Figure:
    """Densities of ID, near- and far-OOD scores, one ridge per step, one panel per detector (paper, Fig. ridge).

    Parameters
    ----------
    panels:
        Per detector, one entry per step with the scores ``[n]`` of ``"id"``, ``"near"`` and ``"far"`` samples. On
        long streams, evenly spaced steps are shown.
    note:
        Caption below the panels.
    """
    count = max(len(steps) for steps in panels.values())
    shown = spread(count, 8)
    figure, axes_row = grid(1, len(panels), 0.9 + 0.42 * len(shown), sharey=True)
    for axes, (detector, steps) in zip(axes_row[0], panels.items(), strict=True):
        where = _range([np.asarray(scores) for step in shown for scores in steps[step].values()])
        for place, step in enumerate(shown):
            _ridge(axes, where, len(shown) - 1 - place, steps[step])
        axes.set(title=label(detector), xlabel="score (higher: more ID)", xlim=(where[0], where[-1]))
        axes.set_yticks(range(len(shown)), [f"step {step}" for step in reversed(shown)])
        axes.tick_params(axis="y", length=0)
        axes.set_ylim(-0.15, len(shown) + 0.35)
        axes.spines["left"].set_visible(False)
    present = next(iter(panels.values()))[0]
    handles: list[Any] = [Patch(facecolor=TINT, edgecolor=COLOURS["id"], linewidth=1.2, label=label("id"))]
    handles += [Line2D([], [], **_outline(group), label=label(group)) for group in ("near", "far") if group in present]
    handles.append(Line2D([], [], color="#404040", linewidth=0.9, marker="o", markersize=2.5, label="median"))
    figure.legend(handles=handles, loc="outside upper center", ncols=4, handlelength=3)
    caption(figure, note)
    return figure


def _ridge(axes: Any, where: Float64Array, base: float, groups: Groups) -> None:
    """Draw the densities of one step on a common base line; the tallest is 1.25 units high."""
    curves = {group: density(groups[group], where) for group in GROUPS if group in groups}
    scale = 1.25 / max(curve.max() for curve in curves.values())
    layer = 10 * (20 - base)  # lower ridges are in front of higher ones
    for group, curve in curves.items():
        curve = np.where(curve > 0.004 * curve.max(), curve, np.nan)  # no line along the base
        top = base + scale * curve
        if group == "id":
            axes.fill_between(where, base, top, color=TINT, linewidth=0, zorder=layer)
        axes.plot(where, top, **_outline(group), zorder=layer + 1)
        middle = float(np.median(np.asarray(groups[group])))
        height = float(np.interp(middle, where, np.nan_to_num(top, nan=base)))
        line = {"color": "#404040", "linewidth": 0.7, "linestyle": LINES[group], "zorder": layer + 2}
        axes.plot([middle, middle], [base, height], **line)
        axes.plot(middle, height, marker="o", markersize=2.5, color="#404040", zorder=layer + 3)
    axes.axhline(base, color="#B0B0B0", linewidth=0.5, zorder=layer + 3)


def _outline(group: str) -> dict[str, Any]:
    """Colour and line style of a group; styles differ so that groups are distinct in greyscale."""
    return {"color": COLOURS[group], "linestyle": LINES[group], "linewidth": 1.2}


@styled
def nearest_distances(
    distances: Sequence[npt.ArrayLike], note: str = "", measure: str = "Euclidean distance"
) -> Figure:
    """Distances of OOD samples to the nearest ID sample (paper, Fig. nn_distance).

    Parameters
    ----------
    distances:
        ``[n]`` per step. On long streams, densities of evenly spaced steps are shown, and all medians.
    note:
        Caption below the panels.
    measure:
        What the values are, for the axes.
    """
    steps = [np.asarray(step, dtype=np.float64) for step in distances]
    shown = spread(len(steps), 6)
    colours = task_colours(len(steps))
    figure, ((left, right),) = grid(1, 2, 2.4, width_ratios=(3, 2))
    where = _range([steps[step] for step in shown])
    for step in shown:
        left.plot(where, density(steps[step], where), color=colours[step], label=f"step {step}")
        left.axvline(float(np.median(steps[step])), color=colours[step], linewidth=0.9, linestyle="--")
    left.set(xlabel=f"{measure} to the nearest ID sample", ylabel="density", xlim=(max(0.0, where[0]), where[-1]))
    left.set_ylim(bottom=0)
    left.legend(**ABOVE, ncols=6, handlelength=1, columnspacing=1)
    medians = [float(np.median(step)) for step in steps]
    right.plot(medians, color=COLOURS["muted"], linewidth=1, zorder=1)
    right.scatter(range(len(steps)), medians, c=colours, s=16 if len(steps) <= 20 else 5, zorder=2)
    change = 100 * (medians[-1] / medians[0] - 1) if medians[0] else 0.0
    title = f"{medians[0]:.2f} to {medians[-1]:.2f} ({change:+.0f} %)".replace("-", "−")
    right.set(ylabel=f"median {measure}", title=title, ylim=(0, 1.15 * max(medians) or 1.0))
    step_axis(right, len(steps))
    caption(figure, note)
    return figure


def density(scores: npt.ArrayLike, where: Float64Array) -> Float64Array:
    """Gaussian kernel density with Scott's bandwidth at ``where``, which must be evenly spaced.

    Scores are binned to the grid first, so the cost does not depend on their number. The bandwidth is at least one
    grid step, so constant scores give a spike.
    """
    values = np.asarray(scores, dtype=np.float64)
    gap = where[1] - where[0]
    edges = np.append(where - gap / 2, where[-1] + gap / 2)
    counts = np.histogram(values, edges)[0].astype(np.float64)
    width = max(gap, float(values.std()) * len(values) ** -0.2)
    kernel = np.exp(-0.5 * (np.arange(-len(where) + 1, len(where)) * gap / width) ** 2)
    smooth = np.convolve(counts, kernel)[len(where) - 1 : 2 * len(where) - 1]
    curve: Float64Array = smooth / (len(values) * width * np.sqrt(2 * np.pi))
    return curve


def _range(arrays: Sequence[Float64Array], points: int = 400) -> Float64Array:
    """An evenly spaced grid from the lowest 1st to the highest 99th percentile of the arrays, with a margin."""
    low = min(float(np.percentile(array, 1)) for array in arrays)
    high = max(float(np.percentile(array, 99)) for array in arrays)
    margin = 0.05 * (high - low) or 1.0
    return np.linspace(low - margin, high + margin, points)

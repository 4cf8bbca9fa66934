"""Distributions of ID, near- and far-OOD scores per step: whiskers and ridges."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from tood.arrays import Float64Array
from tood.report.figures.style import COLOURS, Groups, caption, grid, label, spread, styled

__all__ = ["ridges", "whiskers"]

GROUPS = ("id", "near", "far")
SHADE = "#FBE3DC"
TINT = "#CFE3F2"  # area below the density of ID scores
LINES = {"id": "-", "near": (0, (4, 1.5)), "far": (0, (1, 1))}


@styled
def whiskers(
    learners: Mapping[str, tuple[Sequence[Groups], Sequence[Groups]]],
    names: tuple[str, str] = ("energy", "tood_robust_anchor"),
    note: str = "",
) -> Figure:
    """Box plots of one task's ID scores and of OOD scores at each step, one column per learner (paper, Fig. whisker).

    Boxes are quartiles, whiskers the 5th and 95th percentile. A step is shaded if its ID median is below the near- or
    the far-OOD median. On long streams, evenly spaced steps are shown.

    Parameters
    ----------
    learners:
        Per learner, the uncalibrated and the calibrated scores: one entry per step, with the scores ``[n]`` of
        ``"id"`` and, if there are any, ``"near"`` and ``"far"`` samples.
    names:
        The two detectors.
    note:
        Caption below the panels.
    """
    columns = len(learners)
    most = 8 if columns <= 2 else 5
    figure, panels = grid(2, columns, 3.6, width=7.0 if columns < 5 else 1.5 * columns, sharex="col")
    for column, (learner, pair) in enumerate(learners.items()):
        for row, steps in enumerate(pair):
            axes = panels[row, column]
            shown = spread(len(steps), most)
            for place, step in enumerate(shown):
                _boxes(axes, place, steps[step], calibrated=row == 1)
            axes.set_xticks(range(len(shown)), [str(step) for step in shown])
            axes.set_xlim(-0.5, len(shown) - 0.5)
            axes.grid(False, axis="x")
        panels[0, column].set_title(label(learner))
        panels[1, column].set_xlabel("step")
    for row, name in enumerate(names):
        panels[row, 0].set_ylabel(f"{label(name)}\nscore")
    present = _present(next(iter(learners.values()))[0])
    handles = [Patch(color=COLOURS[group], label=label(group)) for group in present]
    handles.insert(1, Patch(color=COLOURS["tood"], label="ID, calibrated"))
    handles.append(Patch(color=SHADE, label="medians inverted"))
    figure.legend(handles=handles, loc="outside upper center", ncols=len(handles))
    caption(figure, note)
    return figure


def _boxes(axes: Any, place: int, groups: Groups, calibrated: bool) -> None:
    """Draw the boxes of one step next to each other."""
    shown = [group for group in GROUPS if group in groups]
    quantiles = {group: np.percentile(np.asarray(groups[group]), [5, 25, 50, 75, 95]) for group in shown}
    if any(quantiles["id"][2] < quantiles[group][2] for group in shown if group != "id"):
        axes.axvspan(place - 0.5, place + 0.5, color=SHADE, linewidth=0, zorder=0)
    width = 0.8 / len(shown)
    for k, group in enumerate(shown):
        x = place + (k - (len(shown) - 1) / 2) * width
        low, first, middle, third, high = quantiles[group]
        colour = COLOURS["tood" if calibrated and group == "id" else group]
        axes.vlines(x, low, high, color=colour, linewidth=0.8)
        axes.bar(x, third - first, width * 0.8, bottom=first, color=colour, linewidth=0)
        axes.hlines(middle, x - width * 0.4, x + width * 0.4, color="white", linewidth=1.2)


def _present(steps: Sequence[Groups]) -> list[str]:
    """The groups that have scores."""
    return [group for group in GROUPS if group in steps[0]]


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
    present = _present(next(iter(panels.values())))
    handles: list[Any] = [Patch(facecolor=TINT, edgecolor=COLOURS["id"], linewidth=1.2, label=label("id"))]
    handles += [Line2D([], [], **_outline(group), label=label(group)) for group in present if group != "id"]
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

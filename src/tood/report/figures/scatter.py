"""Scatter plots and bars over learners: what OOD forgetting and TOOD's gain correlate with."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.transforms import Bbox

from tood.metrics import correlation
from tood.report.figures.style import COLOURS, Rows, average_by, caption, grid, label, learner_styles, rows_of, styled

__all__ = ["accuracy_balance", "drift_and_forgetting", "forgetting_and_accuracy"]

AXES = {
    "drift": "feature drift, 1 − CKA",
    "d_avg": r"OOD forgetting $D_{\mathrm{avg}}$ (points)",
    "f_avg": r"accuracy forgetting $\bar{F}$ (points)",
    "old_accuracy": "accuracy on old tasks, last step (%)",
}


@styled
def drift_and_forgetting(points: Rows, note: str = "") -> Figure:
    """OOD forgetting and accuracy forgetting by feature drift (paper, Fig. cka).

    Parameters
    ----------
    points:
        One row per run: ``learner``, ``drift`` in [0, 1], ``d_avg`` and ``f_avg`` in percent. Runs of one learner
        become one point, with error bars of one standard deviation.
    note:
        Caption below the panels.
    """
    return _scatter(points, [("drift", "d_avg"), ("drift", "f_avg")], note)


@styled
def forgetting_and_accuracy(points: Rows, note: str = "") -> Figure:
    """OOD forgetting by accuracy forgetting and by accuracy on old tasks (the abstract claims a weak relation).

    Parameters
    ----------
    points:
        One row per run: ``learner``, and ``d_avg``, ``f_avg`` and ``old_accuracy`` in percent.
    note:
        Caption below the panels.
    """
    return _scatter(points, [("f_avg", "d_avg"), ("old_accuracy", "d_avg")], note)


@styled
def accuracy_balance(points: Rows, note: str = "") -> Figure:
    """Accuracy on the newest and on older tasks, and the gain of TOOD (paper, app. abl_vit).

    Shows whether the gain follows the imbalance of accuracy.

    Parameters
    ----------
    points:
        One row per run: ``learner``, ``recent_accuracy`` and ``old_accuracy`` at the last step, and ``gain``, the
        average AUROC of TOOD minus the average AUROC of energy, all in percent.
    note:
        Caption below the panels.
    """
    rows = rows_of(points, ("learner", "recent_accuracy", "old_accuracy", "gain"))
    gains = average_by(rows, "learner", "gain")
    learners = sorted(gains, key=lambda name: gains[name][0])
    places = np.arange(len(learners))
    figure, ((left, right),) = grid(1, 2, 0.9 + 0.34 * len(learners), sharey=True)
    bars = (("recent_accuracy", "newest task", 0.2, "#8C8C8C"), ("old_accuracy", "older tasks", -0.2, "#D4D4D4"))
    errors = {"lw": 1.0, "capsize": 2.5, "ecolor": "#000000"}  # visible on every bar, in greyscale too
    for column, name, shift, colour in bars:
        averages = average_by(rows, "learner", column)
        means, deviations, _ = zip(*(averages[learner] for learner in learners), strict=True)
        left.barh(places + shift, means, 0.36, xerr=_bars(deviations), color=colour, label=name, error_kw=errors)
        for place, mean in zip(places, means, strict=True):
            if not mean >= 0.5:  # distinguishes zero from missing
                text = "not measured" if np.isnan(mean) else "0"
                left.annotate(text, (0, place + shift), (4, 0), textcoords="offset points", va="center", fontsize=6.5)
    means, deviations, _ = zip(*(gains[learner] for learner in learners), strict=True)
    right.barh(places, means, 0.6, xerr=_bars(deviations), color=COLOURS["tood"], error_kw=errors)
    for place, mean in zip(places, means, strict=True):
        if abs(mean) < 0.01 * max(map(abs, means)):  # the bar is too short to see
            right.annotate("0", (0, place), (4, 0), textcoords="offset points", va="center", fontsize=6.5)
    right.axvline(0, color="#000000", linewidth=0.8)
    left.set(xlabel="accuracy at the last step (%)", xlim=(0, 106), xticks=range(0, 101, 20), yticks=places)
    left.set_yticklabels([label(name) for name in learners])
    right.set(xlabel="TOOD's gain over energy (points of Avg AUROC)")
    right.spines["left"].set_visible(False)
    right.margins(x=0.12)
    for axes in (left, right):
        axes.grid(False, axis="y")
        axes.tick_params(axis="y", length=0)
    left.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=2, borderaxespad=0.2)
    caption(figure, note)
    return figure


def _scatter(points: Rows, pairs: Sequence[tuple[str, str]], note: str) -> Figure:
    rows = rows_of(points, {"learner", *(name for pair in pairs for name in pair)})
    figure, panels = grid(1, len(pairs), 2.9)
    named = []
    for axes, (x, y) in zip(panels[0], pairs, strict=True):
        xs, ys = average_by(rows, "learner", x), average_by(rows, "learner", y)
        for name, look in learner_styles(xs).items():
            axes.errorbar(
                xs[name][0],
                ys[name][0],
                xerr=_bars([xs[name][1]]),
                yerr=_bars([ys[name][1]]),
                fmt=look["marker"],
                color=look["color"],
                markersize=5.5,
                elinewidth=0.7,
            )
        axes.set(xlabel=AXES[x], ylabel=AXES[y])
        axes.margins(0.14)
        axes.set(xlim=axes.get_xlim(), ylim=axes.get_ylim())  # the points set the limits, not the trend
        _trend(axes, [xs[name][0] for name in xs], [ys[name][0] for name in xs])
        named.append((axes, {label(name): (*xs[name][:2], *ys[name][:2]) for name in xs}))
    figure.draw_without_rendering()  # names are placed in pixels, which the layout determines
    for axes, places in named:
        _name_points(axes, places)
    caption(figure, note)
    return figure


def _name_points(axes: Any, points: Mapping[str, tuple[float, float, float, float]]) -> None:
    """Write a name next to every point, covering no other name or point if possible; distant names get a line.

    ``points`` holds x, its deviation, y and its deviation.
    """
    half = 3.5 * axes.figure.dpi / 72
    places = {name: (x, y) for name, (x, _, y, _) in points.items()}
    centres = {name: axes.transData.transform(place) for name, place in places.items()}
    taken = []
    for name, (x, dx, y, dy) in points.items():
        (left, low), (right, high) = axes.transData.transform([(x - dx, y - dy), (x + dx, y + dy)])
        at, up = centres[name]
        taken += [Bbox([(at - half, up - half), (at + half, up + half)])]
        taken += [Bbox([(left, up - 1), (right, up + 1)]), Bbox([(at - 1, low), (at + 1, high)])]
    for name in sorted(places, key=lambda name: -centres[name][1]):
        text = axes.annotate(name, places[name], (0, 0), textcoords="offset points", fontsize=6.5, color="#202020")
        best = None
        for reach, angle in itertools.product((6, 12, 20, 30, 42), range(0, 360, 30)):
            dx, dy = reach * np.cos(np.radians(angle)), reach * np.sin(np.radians(angle))
            text.set(position=(dx, dy), ha="left" if dx > 1 else "right" if dx < -1 else "center", va="center")
            box = text.get_window_extent()
            covered = sum(box.overlaps(other) for other in taken)
            outside = not (axes.bbox.x0 <= box.x0 and box.x1 <= axes.bbox.x1 and axes.bbox.y0 <= box.y0 <= axes.bbox.y1)
            cost = (covered + 2 * outside, reach)
            if best is None or cost < best[0]:
                best = (cost, text.get_position(), text.get_ha())
            if cost[0] == 0:
                break
        assert best is not None
        text.set(position=best[1], ha=best[2])
        taken.append(text.get_window_extent())
        if best[0][1] > 6:
            line = {"arrowstyle": "-", "linewidth": 0.4, "color": COLOURS["muted"], "shrinkA": 0, "shrinkB": 2}
            axes.annotate("", places[name], best[1], textcoords="offset points", arrowprops=line)


def _trend(axes: Any, xs: list[float], ys: list[float]) -> None:
    """Write r, its 95 % interval and p as the panel's title; draw the least-squares line if p is below 0.05."""
    n = len(xs)
    if n < 3 or np.ptp(xs) == 0 or np.ptp(ys) == 0:
        axes.set_title(f"n = {n} learner{'s' * (n != 1)}: too few for r", loc="left", color=COLOURS["muted"])
        return
    r, p = correlation(xs, ys)
    chance = "p < 0.001" if p < 0.001 else f"p = {p:.3f}"
    spread = 1.96 / np.sqrt(n - 3) if n > 3 else np.inf  # Fisher's z
    low, high = np.tanh(np.arctanh(np.clip(r, -0.999999, 0.999999)) + np.array([-spread, spread]))
    title = f"r = {r:.2f} ({low:.2f} to {high:.2f}), {chance}, n = {n}".replace("-", "−")
    axes.set_title(title, loc="left", fontsize=8)
    if p > 0.05:
        return
    ends = np.array([min(xs), max(xs)])
    slope, offset = np.polyfit(xs, ys, 1)
    axes.plot(ends, slope * ends + offset, color=COLOURS["muted"], linewidth=1, linestyle="--", zorder=1)


def _bars(deviations: Sequence[float]) -> list[float] | None:
    """Error bars: NaN for a single seed, which has no deviation; None if no learner has one."""
    return [deviation or math.nan for deviation in deviations] if any(deviations) else None

"""Ablations: the size of the calibration set, the margin λ, and the parts of TOOD."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from tood.report.figures.style import COLOURS, Rows, average_by, caption, grid, label, learner_styles, rows_of, styled

__all__ = ["buffer_size", "margin", "mechanism"]

MARGIN = 0.5  # the paper's, marked by a dotted line
MEASURES = {"avg_auroc": "Avg AUROC (%)", "d_avg": r"$D_{\mathrm{avg}}$ (points)"}


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
    rows = rows_of(table, ("learner", "B", *MEASURES))
    figure, panels = grid(2, 1, 3.6, width=4.6, sharex=True)
    for axes, measure in zip(panels[:, 0], MEASURES, strict=True):
        _lines(axes, rows, "B", measure)
        axes.set(xscale="log", ylabel=MEASURES[measure])
        axes.axvline(default, color=COLOURS["muted"], linewidth=0.9, linestyle="--")
    sizes = sorted({row["B"] for row in rows})
    panels[1, 0].set_xlabel("calibration samples B, all tasks together")
    panels[1, 0].set_xticks(sizes, [str(size) for size in sizes])
    panels[1, 0].minorticks_off()
    figure.legend(*panels[0, 0].get_legend_handles_labels(), loc="outside right center")
    bands = "Bands: one standard deviation over draws of the calibration samples and over seeds."
    caption(figure, f"{note} {bands} Dashed: the size in use, {default}.".strip())
    return figure


@styled
def margin(table: Rows, note: str = "") -> Figure:
    """Average AUROC and OOD forgetting by margin λ (paper, Fig. ablation_lambda).

    Parameters
    ----------
    table:
        One row per measurement: ``learner``, ``margin``, ``seed``, and ``avg_auroc`` and ``d_avg`` in percent.
    note:
        Caption below the panels.
    """
    rows = rows_of(table, ("learner", "margin", *MEASURES))
    figure, panels = grid(1, 2, 2.4)
    for axes, measure in zip(panels[0], MEASURES, strict=True):
        _lines(axes, rows, "margin", measure)
        axes.set(xlabel="margin λ", ylabel=MEASURES[measure])
        axes.axvline(MARGIN, color=COLOURS["muted"], linewidth=0.9, linestyle=":")
    figure.legend(*panels[0, 0].get_legend_handles_labels(), loc="outside right center")
    caption(figure, f"{note} Dotted: the margin in use, {MARGIN:g}.".strip())
    return figure


@styled
def mechanism(table: Rows, note: str = "") -> Figure:
    """Gain of each kind of calibration over its uncalibrated detector (paper, Fig. mechanism_dissociation).

    Parameters
    ----------
    table:
        One row per run and mechanism: ``mechanism`` (a detector's name or any text), ``gain``, the difference of
        average AUROC in percent, and ``learner`` if there are several. Bars are means, marks are learners.
    note:
        Caption below the panel.
    """
    rows = rows_of(table, ("mechanism", "gain"))
    gains = average_by(rows, "mechanism", "gain")
    names = list(gains)
    figure, ((axes,),) = grid(1, 1, 0.8 + 0.4 * len(names), width=5.4)
    looks = learner_styles(dict.fromkeys(row["learner"] for row in rows if "learner" in row))
    for place, name in enumerate(names):
        mean, _, _ = gains[name]
        calibrates = name.startswith("tood") and name != "tood_prototype"
        axes.barh(place, mean, 0.62, color=COLOURS["tood"] if calibrates else "#A6A6A6")
        own = [row for row in rows if row["mechanism"] == name]
        for row in own if len(own) > 1 else ():
            look = looks.get(str(row.get("learner")), {"color": "#000000", "marker": "o"})
            shape = {"marker": look["marker"], "color": look["color"], "edgecolors": "white", "linewidths": 0.4}
            axes.scatter(float(row["gain"]), place, s=22, zorder=3, **shape)
        text = f"{mean:+.1f}".replace("-", "−")
        axes.annotate(text, (1.02, place), xycoords=("axes fraction", "data"), va="center", fontsize=8)
    axes.axvline(0, color="#000000", linewidth=0.8)
    axes.set(xlabel="change of Avg AUROC (points)", yticks=range(len(names)))
    axes.set_yticklabels([label(name) for name in names])
    axes.invert_yaxis()
    axes.margins(x=0.15)
    axes.grid(False, axis="y")
    axes.tick_params(axis="y", length=0)
    marks = [
        Line2D([], [], marker=look["marker"], color=look["color"], linestyle="", markersize=4.5, label=label(name))
        for name, look in looks.items()
    ]
    if marks:
        figure.legend(handles=marks, loc="outside right center", handletextpad=0.2)
    caption(figure, note)
    return figure


def _lines(axes: Any, rows: list[dict[str, Any]], x: str, measure: str) -> None:
    """Draw one line per learner, with a band of one standard deviation over seeds."""
    for learner, look in learner_styles(dict.fromkeys(row["learner"] for row in rows)).items():
        averages = average_by([row for row in rows if row["learner"] == learner], x, measure)
        xs = sorted(averages)
        means, deviations = (np.array([averages[value][column] for value in xs]) for column in (0, 1))
        axes.plot(xs, means, **look, label=label(learner))
        if deviations.any():
            axes.fill_between(xs, means - deviations, means + deviations, color=look["color"], alpha=0.15, linewidth=0)

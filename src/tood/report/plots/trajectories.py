"""Values of tasks: accuracy and AUROC of the first at each step, energies at each step, and what each has lost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
from matplotlib.figure import Figure

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
    whole_ticks,
)

__all__ = ["confidence_gap", "forgetting_by_task", "task_trajectory"]


@styled
def task_trajectory(
    accuracy: npt.ArrayLike,
    auroc: Mapping[str, npt.ArrayLike],
    energy: Sequence[Groups],
    tood: Sequence[Groups],
    note: str = "",
) -> Figure:
    """Accuracy and AUROC of task 0 at each step, and mean scores (paper, Fig. main_panel).

    Parameters
    ----------
    accuracy:
        ``[T]``: the accuracy of task 0 at each step, in [0, 1].
    auroc:
        ``[T]`` per detector, in [0, 1].
    energy, tood:
        The scores at each step: ``"id"`` (of task 0), ``"near"`` and ``"far"``.
    note:
        Caption below the panels.
    """
    figure, ((left, right),) = grid(1, 2, 2.5)
    steps = range(len(energy))
    marker = {"marker": "o"} if len(steps) <= 20 else {}
    left.plot(steps, 100 * np.asarray(accuracy), color=COLOURS["accuracy"], label="accuracy", **marker)
    for detector, values in auroc.items():
        calibrated = detector.startswith("tood")
        style = {"color": COLOURS["tood" if calibrated else "energy"], "linestyle": "-" if calibrated else "--"}
        left.plot(steps, 100 * np.asarray(values), label=f"{label(detector)} AUROC", **style, **marker)
    left.axhline(50, color=COLOURS["muted"], linewidth=0.8, linestyle=":", label="chance")
    left.set(ylabel="task 0 (%)")
    for source, dashes, suffix in ((energy, "--", ""), (tood, "-", ", calibrated")):
        for group in ("id", "near", "far"):
            if group in source[0]:
                middle = [float(np.mean(np.asarray(scores[group]))) for scores in source]
                colour = COLOURS["tood" if group == "id" and source is tood else group]
                right.plot(steps, middle, color=colour, linestyle=dashes, label=label(group) + suffix, **marker)
    right.set(ylabel="mean score")
    for axes in (left, right):
        step_axis(axes, len(steps))
        axes.legend(**ABOVE, ncols=2, handlelength=3, columnspacing=1)
    caption(figure, note)
    return figure


@styled
def confidence_gap(energies: npt.ArrayLike, note: str = "") -> Figure:
    """Mean energy of each task's samples in their own channel, at each step (paper, "The Confidence Gap").

    Parameters
    ----------
    energies:
        ``[T, T]``: entry ``[t, i]`` is the mean of task i at step t, NaN for i > t. At most ten tasks are shown.
    note:
        Caption below the panel.
    """
    values = np.asarray(energies, dtype=np.float64)
    figure, ((axes,),) = grid(1, 1, 2.5, width=4.2)
    tasks = len(values)
    for task, colour in enumerate(task_colours(tasks)):
        if task in spread(tasks, 10):
            marker = "o" if tasks <= 20 else ""
            axes.plot(range(task, tasks), values[task:, task], marker=marker, color=colour, label=f"task {task}")
    axes.set(ylabel="mean energy in the own channel")
    step_axis(axes, tasks)
    figure.legend(loc="outside right center", handlelength=1.2)
    caption(figure, note)
    return figure


@styled
def forgetting_by_task(ood: Mapping[str, npt.ArrayLike], accuracy: npt.ArrayLike, note: str = "") -> Figure:
    """Loss of each task by the last step: D_i per detector, and F_i of accuracy.

    Parameters
    ----------
    ood:
        ``[T-1]`` per detector: D_i, in [0, 1].
    accuracy:
        ``[T-1]``: F_i, in [0, 1].
    note:
        Caption below the panel.
    """
    colours = {name: COLOURS["tood" if name.startswith("tood") else "energy"] for name in ood}
    series = {f"AUROC, {label(name)}": (100 * np.asarray(values), colours[name]) for name, values in ood.items()}
    series["accuracy"] = (100 * np.asarray(accuracy), COLOURS["accuracy"])
    count = len(np.asarray(accuracy))
    figure, ((axes,),) = grid(1, 1, 2.4)
    places = np.arange(count)
    width = 0.8 / len(series)
    for k, (name, (values, colour)) in enumerate(series.items()):
        if count <= 20:
            x = places + (k - (len(series) - 1) / 2) * width
            axes.bar(x, values, 0.9 * width, color=colour, label=name)
            for place in np.flatnonzero(np.abs(values) < 0.05):  # distinguishes zero from missing
                axes.annotate("0", (x[place], 0), (0, 1.5), textcoords="offset points", ha="center", fontsize=6.5)
        else:
            axes.plot(places, values, color=colour, linewidth=1, label=name)
    axes.axhline(0, color="#000000", linewidth=0.8)
    axes.set(xlabel="task", ylabel="lost by the last step (points; 0: none)", xlim=(-0.6, count - 0.4))
    whole_ticks(axes.xaxis)
    axes.grid(False, axis="x")
    axes.legend(**ABOVE, ncols=len(series))
    caption(figure, note)
    return figure

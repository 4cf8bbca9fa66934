"""Values at each step: a task's accuracy and AUROC, energies per task, and the effect of a fixed threshold."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from matplotlib.figure import Figure

from tood.report.figures.style import COLOURS, Groups, caption, grid, label, spread, step_axis, styled, task_colours

__all__ = ["confidence_gap", "fixed_threshold", "task_trajectory"]

LINES = ("-", "--", ":", "-.")


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
        name = "TOOD" if calibrated else label(detector)
        style = {"color": COLOURS["tood" if calibrated else "energy"], "linestyle": "-" if calibrated else "--"}
        left.plot(steps, 100 * np.asarray(values), label=f"{name} AUROC", **style, **marker)
    left.axhline(50, color=COLOURS["muted"], linewidth=0.8, linestyle=":")
    left.annotate("chance", (1, 50), (2, 0), xycoords=("axes fraction", "data"), textcoords="offset points",
                  va="center", fontsize=6, color=COLOURS["muted"])  # fmt: skip
    left.set(ylabel="task 0 (%)")
    for source, dashes, suffix in ((energy, "--", ""), (tood, "-", ", TOOD")):
        for group in ("id", "near", "far"):
            if group in source[0]:
                middle = [float(np.mean(np.asarray(scores[group]))) for scores in source]
                colour = COLOURS["tood" if group == "id" and source is tood else group]
                right.plot(steps, middle, color=colour, linestyle=dashes, label=label(group) + suffix, **marker)
    right.set(ylabel="mean energy or TOOD score")
    for axes, columns in ((left, 3), (right, 2)):
        step_axis(axes, len(steps))
        axes.legend(
            loc="lower left", bbox_to_anchor=(0, 1), ncols=columns, borderaxespad=0.2, handlelength=3, columnspacing=1
        )
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
    _task_lines(axes, values)
    axes.set(ylabel="mean energy in the own channel")
    step_axis(axes, len(values))
    _task_key(figure, axes, "outside right center", columns=1)
    caption(figure, note)
    return figure


@styled
def fixed_threshold(
    recall: Mapping[str, npt.ArrayLike],
    caught: Mapping[str, Mapping[str, npt.ArrayLike]],
    groups: Mapping[str, str],
    note: str = "",
) -> Figure:
    """Effect of a threshold fixed at step 0: accepted ID samples and rejected OOD samples at each step.

    Parameters
    ----------
    recall:
        ``[T, T]`` per detector, in [0, 1]: the share of task i accepted at step t, NaN for i > t. At most ten tasks
        are shown.
    caught:
        ``[T]`` per detector and OOD set, in [0, 1]: the share rejected at each step.
    groups:
        The group, ``"near"`` or ``"far"``, of each OOD set.
    note:
        Caption below the panels.
    """
    figure, panels = grid(len(recall), 2, 0.5 + 1.9 * len(recall), sharex=True, sharey=True)
    tasks = 0
    for (left, right), (detector, shares) in zip(panels, recall.items(), strict=True):
        values = 100 * np.asarray(shares, dtype=np.float64)
        tasks = len(values)
        _task_lines(left, values)
        left.axhline(95, color=COLOURS["muted"], linewidth=0.8, linestyle=":")
        left.set(ylabel=f"{label(detector)}\nID accepted (%)", ylim=(-4, 104))
        of_group = {"near": 0, "far": 0}
        for name, rejected in caught[detector].items():
            group = groups[name]
            style = {"color": COLOURS[group], "linestyle": LINES[of_group[group] % len(LINES)]}
            of_group[group] += 1
            marker = {"marker": "o"} if tasks <= 20 else {}
            right.plot(range(tasks), 100 * np.asarray(rejected), label=f"{name} ({group})", **style, **marker)
        right.set(ylabel="OOD caught (%)")
    for axes in panels[-1]:
        step_axis(axes, tasks)
    figure.legend(*panels[0, 1].get_legend_handles_labels(), loc="outside right center", handlelength=2.4)
    _task_key(figure, panels[0, 0], "outside upper left")
    caption(figure, note)
    return figure


def _task_lines(axes: Any, values: Any) -> None:
    """Draw one line per task, from the step that learned it; at most ten tasks, evenly spaced."""
    tasks = len(values)
    style = {"marker": "o"} if tasks <= 20 else {"linewidth": 1.1}
    colours = task_colours(tasks)
    for task in spread(tasks, 10):
        axes.plot(range(task, tasks), values[task:, task], color=colours[task], label=f"task {task}", **style)


def _task_key(figure: Figure, axes: Any, place: Any, columns: int = 10) -> None:
    handles, names = axes.get_legend_handles_labels()
    figure.legend(handles, names, loc=place, ncols=columns, handlelength=1.2, columnspacing=1)

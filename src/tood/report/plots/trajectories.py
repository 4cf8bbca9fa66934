"""Values of tasks at each step: accuracy and AUROC of the first, and the energies of all."""

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
)

__all__ = ["confidence_gap", "task_trajectory"]


@styled
def task_trajectory(
    accuracy: npt.ArrayLike,
    auroc: Mapping[str, npt.ArrayLike],
    scores: Mapping[str, Sequence[Groups]],
    note: str = "",
) -> Figure:
    """Accuracy and AUROC of task 0 at each step, and mean scores (paper, Fig. main_panel).

    Parameters
    ----------
    accuracy:
        ``[T]``: the accuracy of task 0 at each step, in [0, 1].
    auroc:
        ``[T]`` per detector, in [0, 1].
    scores:
        For energy and TOOD, the scores at each step: ``"id"`` (of task 0), ``"near"`` and ``"far"``.
    note:
        Caption below the panels.
    """
    figure, ((left, right),) = grid(1, 2, 2.5)
    values = np.asarray(accuracy)
    steps, marker = range(len(values)), {"marker": "o"} if len(values) <= 20 else {}
    left.plot(steps, 100 * values, color=COLOURS["accuracy"], label="accuracy", **marker)
    for detector, line in auroc.items():
        left.plot(steps, 100 * np.asarray(line), label=f"AUROC, {label(detector)}", **_line(detector), **marker)
    left.axhline(50, color=COLOURS["muted"], linewidth=0.8, linestyle=":", label="chance")
    left.set(ylabel="task 0 (%)")
    for detector, along in scores.items():
        for group in along[0]:
            means = [float(np.mean(np.asarray(groups[group]))) for groups in along]
            colour = COLOURS["tood" if group == "id" and detector != "energy" else group]
            dashes = _line(detector)["linestyle"]
            text = f"{label(group)}, {label(detector)}"
            right.plot(steps, means, color=colour, linestyle=dashes, label=text, **marker)
    right.set(ylabel="mean score")
    for axes in (left, right):
        step_axis(axes, len(steps))
        axes.legend(**ABOVE, ncols=2, handlelength=3, columnspacing=1)
    caption(figure, note)
    return figure


def _line(detector: str) -> dict[str, str]:
    """Colour and dashes of a detector: energy, TOOD, or a variant of the paper."""
    dashes = {"energy": "--", "tood_robust_anchor": "-.", "tood_mean_shift": ":"}
    return {"color": COLOURS["energy" if detector == "energy" else "tood"], "linestyle": dashes.get(detector, "-")}


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

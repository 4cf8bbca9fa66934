"""All tasks: heat maps over steps, and forgetting per task."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.figure import Figure

from tood.report.figures.style import COLOURS, VALUE_MAP, WIDTH, caption, grid, label, styled, whole_ticks

__all__ = ["forgetting_by_task", "heat_maps"]


@styled
def heat_maps(panels: Mapping[str, npt.ArrayLike], note: str = "") -> Figure:
    """AUROC of every task at every step, one panel per detector.

    Parameters
    ----------
    panels:
        ``[T, T]`` per detector, in [0, 1]: entry ``[t, i]`` is task i at step t, NaN for i > t.
    note:
        Caption below the panels.
    """
    values = {name: 100 * np.asarray(panel, dtype=np.float64) for name, panel in panels.items()}
    steps = len(next(iter(values.values())))
    columns = min(len(values), 4 if len(values) % 4 in (0, 3) and not 6 < steps <= 10 else 3)
    rows = -(-len(values) // columns)
    width = min(WIDTH, 0.9 + 2.4 * columns)
    height = 0.25 + rows * (0.25 + 0.86 * width / columns)
    figure, axes_grid = grid(rows, columns, height, width, sharex=True, sharey=True)
    low = min(50.0, min(float(np.nanmin(panel)) for panel in values.values()))
    norm = Normalize(np.floor(low / 10) * 10, 100)
    for axes, (name, panel) in zip(axes_grid.flat, values.items(), strict=False):
        axes.imshow(panel, cmap=VALUE_MAP, norm=norm, interpolation="nearest")
        axes.set_title(label(name))
        axes.grid(False)
        for axis in (axes.xaxis, axes.yaxis):
            whole_ticks(axis, steps)
        if steps <= 10:
            _write(axes, panel, norm, size=7 if steps * columns <= 20 else 5)
    for axes in axes_grid.flat[len(values) :]:
        axes.set_visible(False)
    for axes in axes_grid[:, 0]:
        axes.set_ylabel("step")
    for place in range(columns):
        last = [axes for axes in axes_grid[:, place] if axes.get_visible()][-1]
        last.set_xlabel("task")
        last.tick_params(labelbottom=True)
    bar = figure.colorbar(
        ScalarMappable(norm, VALUE_MAP), ax=axes_grid, label="AUROC (%)", fraction=0.03, pad=0.01, aspect=30
    )
    bar.outline.set_visible(False)
    caption(figure, note)
    return figure


def _write(axes: Any, panel: npt.NDArray[np.float64], norm: Normalize, size: float) -> None:
    """Write the values into their cells, dark on light and light on dark."""
    for (step, task), value in np.ndenumerate(panel):
        if np.isfinite(value):
            light = norm(value) > 0.55
            axes.text(task, step, f"{value:.0f}", ha="center", va="center", fontsize=size,
                      color="#000000" if light else "#FFFFFF")  # fmt: skip


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
    series = {f"$D_i$, {label(name)}": (100 * np.asarray(values), colours[name]) for name, values in ood.items()}
    series["$F_i$, accuracy"] = (100 * np.asarray(accuracy), COLOURS["accuracy"])
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
    axes.set(xlabel="task", ylabel="lost by the last step (points)", xlim=(-0.6, count - 0.4))
    whole_ticks(axes.xaxis, count)
    axes.grid(False, axis="x")
    axes.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=len(series), borderaxespad=0.2)
    caption(figure, note)
    return figure

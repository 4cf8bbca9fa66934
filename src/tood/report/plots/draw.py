"""Draw and save every plot of a set of measured runs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from tood.errors import ToodError
from tood.outputs.directory import Run
from tood.report.gather import MeasuredRun
from tood.report.plots.learners import scatter
from tood.report.plots.style import ABOVE, COLOURS, as_text, caption, grid, label, save, styled
from tood.report.summary import on_its_own
from tood.report.tables import LEARNERS, TOOD_VARIANTS, place
from tood.storage.files import file_name, printable

__all__ = ["draw_all", "task_trajectory"]


def draw_all(
    runs: Iterable[Run | MeasuredRun],
    out_dir: Path,
    paper: bool = False,
    say: Callable[[str], object] = lambda line: None,
) -> list[Path]:
    """Draw every plot that the data allows, as PNG and PDF.

    One plot per learner shows its first seed. The plot of feature drift uses all seeds; it needs two learners, and
    features.

    Parameters
    ----------
    runs:
        Runs with a ``metrics.parquet``.
    out_dir:
        Parent of one folder per stream, with one folder per learner inside.
    paper:
        Show the paper's variants beside TOOD, if they were measured.
    say:
        Called with a line before the plots of a run are drawn.

    Returns
    -------
    The files written.
    """
    streams: dict[str, list[MeasuredRun]] = {}
    for measured in MeasuredRun.all_of(runs):
        if "energy" not in measured.detectors:
            file = measured.run.metrics_path
            raise ToodError(f"{file}: expected metrics of energy, which all plots need; found none")
        streams.setdefault(measured.run.stream, []).append(measured)
    if not streams:
        raise ToodError("runs: expected at least one, found none")
    paths: list[Path] = []
    for stream, members in streams.items():
        folder = Path(out_dir) / file_name(stream)
        first = {one.learner: one for one in reversed(members)}
        for one in sorted(first.values(), key=lambda one: (place(one.run.learner, LEARNERS), one.learner)):
            say(f"drawing {printable(one.name)}")
            shown = ["energy", one.tood, *(name for name in TOOD_VARIANTS if paper and name in one.detectors)]
            auroc = {name: one.trajectory(name).balanced().mean()[:, 0] for name in shown if name}
            note = f"{as_text(one.name)}, {one.steps} tasks. AUROC: (near + far) / 2."
            figure = task_trajectory(one.accuracy[:, 0], auroc, note)
            paths += save(figure, folder / file_name(one.learner) / "task0")
        compared = [one for one in members if on_its_own(one.learner)] or members  # without BER and options
        for name, figure in _drift(compared) if len({one.learner for one in compared}) > 1 else ():
            paths += save(figure, folder / name)
    return paths


@styled
def task_trajectory(accuracy: npt.ArrayLike, auroc: Mapping[str, npt.ArrayLike], note: str = "") -> Figure:
    """Accuracy and AUROC of task 0 at each step (paper, Fig. main_panel).

    Parameters
    ----------
    accuracy:
        ``[T]``: the accuracy of task 0 at each step, in [0, 1].
    auroc:
        ``[T]`` per detector, in [0, 1].
    note:
        Caption below the panel.
    """
    figure, ((axes,),) = grid(1, 1, 2.6, width=4.6)
    values = np.asarray(accuracy)
    steps, marker = range(len(values)), {"marker": "o"} if len(values) <= 20 else {}
    axes.plot(steps, 100 * values, color=COLOURS["accuracy"], label="accuracy", **marker)
    dashes = {"energy": "--", "tood_robust_anchor": "-.", "tood_mean_shift": ":"}
    for name, line in auroc.items():
        colour = COLOURS["energy" if name == "energy" else "tood"]
        look = {"color": colour, "linestyle": dashes.get(name, "-"), **marker}
        axes.plot(steps, 100 * np.asarray(line), label=f"AUROC, {label(name)}", **look)
    axes.axhline(50, color=COLOURS["muted"], linewidth=0.8, linestyle=":", label="chance")
    axes.set(xlabel="step", ylabel="task 0 (%)")
    axes.xaxis.set_major_locator(MaxNLocator(nbins=12, integer=True))
    axes.legend(**ABOVE, ncols=2, handlelength=3, columnspacing=1)
    caption(figure, note)
    return figure


def _drift(measured: Sequence[MeasuredRun]) -> Iterator[tuple[str, Figure]]:
    """Feature drift over learners; nothing if a run has no features."""
    points = [one.point() for one in measured]
    if all(np.isfinite(point["drift"]) for point in points):
        note = f"{len(measured)} runs on {as_text(measured[0].run.stream)}, {measured[0].steps} tasks. "
        note += "Points: means over seeds; bars: one standard deviation. AUROC: of energy, (near + far) / 2, mean over "
        note += "old tasks. Drift: between each task's own step and the last, mean over tasks. "
        yield "drift", scatter(points, note)

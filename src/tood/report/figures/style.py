"""Style of all figures: a palette for colour-blind readers, one page width, one way to save."""

from __future__ import annotations

import functools
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, ParamSpec, TypeAlias

import matplotlib as mpl
import numpy.typing as npt
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from tood.errors import ToodError
from tood.files import printable, write_file
from tood.metrics import mean_std
from tood.report import appearance
from tood.report.appearance import COLOURS, spread
from tood.runs.identity import RunIdentity

__all__ = ["COLOURS", "as_text", "label", "save", "spread"]

Groups: TypeAlias = Mapping[str, npt.ArrayLike]  # scores of "id", "near" and "far" samples at one step
Rows: TypeAlias = "Sequence[Mapping[str, Any]] | Any"  # a list of rows, or a table with to_pylist (pyarrow)
P = ParamSpec("P")

WIDTH = 7.0  # inches: the text width of a two-column page

# Colour and marker per learner, in every figure. No two learners share both; similar colours have different markers.
LEARNERS = {
    "icarl": ("#332288", "o"),
    "bic": ("#CC6677", "s"),
    "der": ("#999933", "D"),
    "wa": ("#4AA8DC", "^"),
    "lwf": ("#882255", "v"),
    "er": ("#000000", "P"),
    "ewc": ("#C9A227", "X"),
    "si": ("#767676", "<"),
    "agem": ("#8C510A", ">"),
    "gem": ("#C51B7D", "p"),
    "finetune": ("#B2182B", "h"),
    "joint": ("#1B7837", "*"),
    "derpp": ("#6B6B00", "d"),
    "ncm": ("#35978F", "8"),
    "slda": ("#9970AB", "H"),
    "fecam": ("#01665E", "s"),
    "ranpac": ("#D6604D", "D"),
}
TASK_MAP = "viridis"  # old tasks dark, new tasks light
VALUE_MAP = "cividis"

STYLE: dict[Any, Any] = {
    "font.size": 8,
    "axes.titlesize": 8,
    "axes.labelsize": 8,
    "legend.fontsize": 7,
    "xtick.labelsize": 7,
    "ytick.labelsize": 7,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.6,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#E6E6E6",
    "grid.linewidth": 0.5,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "lines.linewidth": 1.4,
    "lines.markersize": 4,
    "legend.frameon": False,
    "figure.constrained_layout.use": True,
    "savefig.dpi": 200,
    "pdf.fonttype": 42,  # text stays text in the PDF
}


def as_text(name: str) -> str:
    """A name from a run as matplotlib must draw it: without control characters, ``$`` as a character, not as math."""
    return printable(name).replace("$", r"\$")


def label(name: str) -> str:
    """The title of a learner, detector or group, as :func:`tood.report.appearance.label`, to be drawn."""
    return as_text(appearance.label(name))


def styled(draw: Callable[P, Figure]) -> Callable[P, Figure]:
    """Decorator: draw with this module's style, whatever the caller's own settings are."""

    @functools.wraps(draw)
    def inside(*args: P.args, **kwargs: P.kwargs) -> Figure:
        with mpl.rc_context(STYLE):
            return draw(*args, **kwargs)

    return inside


def grid(rows: int, columns: int, height: float, width: float = WIDTH, **options: Any) -> tuple[Figure, Any]:
    """A figure and its axes ``[rows, columns]``, made without pyplot: no global state, nothing to close."""
    figure = Figure(figsize=(width, height))
    FigureCanvasAgg(figure)
    return figure, figure.subplots(rows, columns, squeeze=False, **options)


def caption(figure: Figure, text: str) -> None:
    """Write a caption below the panels."""
    if text:
        lines = textwrap.fill(text, int(figure.get_figwidth() * 20))
        figure.text(0.01, -0.01, lines, va="top", ha="left", fontsize=7, color="#404040")


def save(figure: Figure, stem: Path) -> list[Path]:
    """Write ``stem.png`` and ``stem.pdf``; equal figures give equal bytes."""
    stem = Path(stem)
    with mpl.rc_context(STYLE):
        figure.draw_without_rendering()
        figure.set_layout_engine("none")  # laid out once; both files share it
        box = figure.get_tightbbox().padded(0.05)
        paths = []
        for kind, metadata in (("png", {"Software": None}), ("pdf", {"CreationDate": None})):
            draw = functools.partial(figure.savefig, format=kind, bbox_inches=box, metadata=metadata)
            paths.append(stem.with_name(f"{stem.name}.{kind}"))
            write_file(paths[-1], draw)
    return paths


def whole_ticks(axis: Any, count: int) -> None:
    """Ticks at whole numbers: at each of 0 to ``count - 1`` if there is room, else at round numbers."""
    if count <= 12:
        axis.set_ticks(range(count))
    else:
        axis.set_major_locator(MaxNLocator(nbins=6, integer=True, steps=[1, 2, 5, 10]))


def step_axis(axes: Any, steps: int) -> None:
    """Label the x axis with steps 0 to ``steps - 1``."""
    margin = 0.3 if steps < 20 else 0.005 * steps
    axes.set(xlabel="step", xlim=(-margin, steps - 1 + margin))
    whole_ticks(axes.xaxis, steps)


def learner_styles(names: Iterable[str]) -> dict[str, dict[str, Any]]:
    """Colour, marker and line of each learner, the same in every figure; learners with options or BER are dashed."""
    styles: dict[str, dict[str, Any]] = {}
    known, looks = list(LEARNERS.values()), dict(LEARNERS)
    for name in names:
        base = RunIdentity.from_label(name).learner
        if base not in looks:  # an unknown learner: the colour of one known learner, the marker of another
            place = len(looks) - len(LEARNERS)
            looks[base] = known[place % len(known)][0], known[(place + 5) % len(known)][1]
        colour, marker = looks[base]
        styles[name] = {"color": colour, "marker": marker, "linestyle": "-" if name == base else "--"}
    return styles


def task_colours(tasks: int) -> list[tuple[float, ...]]:
    """One colour per task, dark for the oldest."""
    return [mpl.colormaps[TASK_MAP](0.92 * task / max(1, tasks - 1)) for task in range(tasks)]


def task_bar(figure: Figure, axes: Any, tasks: int) -> None:
    """Draw a colour bar of tasks, for more tasks than fit into a legend."""
    colours = mpl.colors.ListedColormap(task_colours(tasks))
    norm = mpl.colors.Normalize(-0.5, tasks - 0.5)
    bar = figure.colorbar(mpl.cm.ScalarMappable(norm, colours), ax=axes, label="task", pad=0.02, fraction=0.05)
    whole_ticks(bar.ax.yaxis, tasks)
    bar.outline.set_visible(False)


def rows_of(table: Rows, columns: Iterable[str]) -> list[dict[str, Any]]:
    """The rows of a table as dicts; raises if a column is missing."""
    rows = [dict(row) for row in (table.to_pylist() if hasattr(table, "to_pylist") else table)]
    if not rows:
        raise ToodError("table: expected at least one row, found none")
    for row in rows:
        missing = [name for name in columns if name not in row]
        if missing:
            raise ToodError(f"table: expected the column {missing[0]!r}, found {', '.join(row)}")
    return rows


def average_by(rows: Sequence[Mapping[str, Any]], key: str, value: str) -> dict[Any, tuple[float, float, int]]:
    """Mean, sample standard deviation and number of ``value`` per value of ``key``, in order of appearance."""
    groups: dict[Any, list[float]] = {}
    for row in rows:
        groups.setdefault(row[key], []).append(float(row[value]))
    return {name: (*mean_std(values), len(values)) for name, values in groups.items()}

"""Style of all plots: a palette for colour-blind readers, one page width, one way to save."""

from __future__ import annotations

import functools
import textwrap
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ParamSpec, TypeAlias

import matplotlib as mpl
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from tood.report import appearance
from tood.report.appearance import COLOURS
from tood.storage.files import printable, write_file

__all__ = ["COLOURS", "as_text", "label", "save"]

Rows: TypeAlias = Sequence[Mapping[str, Any]]
P = ParamSpec("P")

WIDTH = 7.0  # inches: the text width of a two-column page

ABOVE: dict[str, Any] = {"loc": "lower left", "bbox_to_anchor": (0, 1), "borderaxespad": 0.2}  # legend over a panel

STYLE: dict[Any, Any] = {
    **dict.fromkeys(("font.size", "axes.titlesize", "axes.labelsize"), 8),
    **dict.fromkeys(("legend.fontsize", "xtick.labelsize", "ytick.labelsize"), 7),
    **dict.fromkeys(("axes.linewidth", "xtick.major.width", "ytick.major.width"), 0.6),
    **dict.fromkeys(("axes.spines.top", "axes.spines.right", "legend.frameon"), False),
    **dict.fromkeys(("axes.grid", "axes.axisbelow", "figure.constrained_layout.use"), True),
    "grid.color": "#E6E6E6",
    "grid.linewidth": 0.5,
    "lines.linewidth": 1.4,
    "lines.markersize": 4,
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
    """Write ``stem.png`` and ``stem.pdf``; equal plots give equal bytes."""
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

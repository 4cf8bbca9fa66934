"""Plots: one function each, from tables or arrays to a matplotlib Figure; ``draw_all`` draws those of runs."""

from tood.errors import MissingDependencyError

try:
    import matplotlib  # noqa: F401
except ImportError as missing:
    raise MissingDependencyError("matplotlib", "report", "drawing plots") from missing

from tood.report.plots.draw import draw_all
from tood.report.plots.learners import buffer_size, margin
from tood.report.plots.style import COLOURS, save

__all__ = ["COLOURS", "buffer_size", "draw_all", "margin", "save"]

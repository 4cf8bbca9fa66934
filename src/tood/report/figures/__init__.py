"""Figures: one function each, from tables or arrays to a matplotlib Figure; ``draw_all`` draws those of runs."""

from tood.errors import MissingDependencyError

try:
    import matplotlib  # noqa: F401
except ImportError as missing:
    raise MissingDependencyError("matplotlib", "report", "drawing figures") from missing

from tood.report.figures.ablations import buffer_size, margin, mechanism
from tood.report.figures.crowding import Embedding, embed, nearest_distances, tsne
from tood.report.figures.distributions import ridges, whiskers
from tood.report.figures.draw import draw_all
from tood.report.figures.matrices import forgetting_by_task, heat_maps
from tood.report.figures.scatter import accuracy_balance, drift_and_forgetting, forgetting_and_accuracy
from tood.report.figures.style import COLOURS, save
from tood.report.figures.trajectories import confidence_gap, fixed_threshold, task_trajectory

__all__ = [
    "COLOURS",
    "Embedding",
    "accuracy_balance",
    "buffer_size",
    "confidence_gap",
    "draw_all",
    "drift_and_forgetting",
    "embed",
    "fixed_threshold",
    "forgetting_and_accuracy",
    "forgetting_by_task",
    "heat_maps",
    "margin",
    "mechanism",
    "nearest_distances",
    "ridges",
    "save",
    "task_trajectory",
    "tsne",
    "whiskers",
]

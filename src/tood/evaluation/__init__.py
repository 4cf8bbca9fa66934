"""Evaluation: scores and metrics of every step of a run."""

from tood.evaluation.measure import default_scorers, evaluate, measure, measure_step
from tood.evaluation.metrics_file import accuracy, load_metrics, trajectory
from tood.evaluation.score import Scorer, scores

__all__ = [
    "Scorer",
    "accuracy",
    "default_scorers",
    "evaluate",
    "load_metrics",
    "measure",
    "measure_step",
    "scores",
    "trajectory",
]

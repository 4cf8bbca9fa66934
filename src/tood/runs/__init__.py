"""Runs: the run directory, and every stage from training to metrics."""

from typing import Any

from tood.runs.config import RunConfig
from tood.runs.directory import Run, find_runs, write_manifest
from tood.runs.measure import default_scorers, figures, measure, measure_step
from tood.runs.metrics_file import accuracy, load_metrics, trajectory
from tood.runs.score import Scorer, scores
from tood.runs.steps import Step, write_step

__all__ = [
    "Run",
    "RunConfig",
    "Scorer",
    "Step",
    "accuracy",
    "default_scorers",
    "figures",
    "find_runs",
    "load_metrics",
    "measure",
    "measure_step",
    "run",
    "scores",
    "trajectory",
    "write_manifest",
    "write_step",
]


def __getattr__(name: str) -> Any:
    """``run`` needs torch, which is imported only when it is asked for."""
    if name == "run":
        from tood.runs.stages import run

        return run
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

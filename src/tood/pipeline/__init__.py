"""From outputs to figures: the run directory, scoring, measuring, and the audit."""

from tood.pipeline.audit import Audit, audit
from tood.pipeline.measure import default_scorers, figures, measure, measure_step
from tood.pipeline.metrics_file import accuracy, load_metrics, trajectory
from tood.pipeline.scoring import Scorer, scores
from tood.pipeline.steps import Step, write_step
from tood.pipeline.store import Run, find_runs, write_manifest
from tood.pipeline.verdict import Verdict

__all__ = [
    "Audit",
    "Run",
    "Scorer",
    "Step",
    "Verdict",
    "accuracy",
    "audit",
    "default_scorers",
    "figures",
    "find_runs",
    "load_metrics",
    "measure",
    "measure_step",
    "scores",
    "trajectory",
    "write_manifest",
    "write_step",
]

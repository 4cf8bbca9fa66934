"""From scores to decisions: thresholds, conformal p-values, prediction sets, bounded error among accepted inputs."""

from tood.decision.calibrators import score_and_assign
from tood.decision.conformal import KIND, Conformal, Decision
from tood.decision.ranks import p_values, threshold
from tood.decision.risk import selective_threshold
from tood.decision.sets import PredictionSets

__all__ = [
    "KIND",
    "Conformal",
    "Decision",
    "PredictionSets",
    "p_values",
    "score_and_assign",
    "selective_threshold",
    "threshold",
]

"""Metrics of OOD detection, of trajectories along a stream, of representations and of selective classification."""

from tood.metrics.detection import (
    aupr_in,
    aupr_out,
    auroc,
    bootstrap,
    evaluate,
    evaluate_tasks,
    fpr_at_id_recall,
    fpr_at_ood_recall,
)
from tood.metrics.representation import confidence_gap, correlation, linear_cka, nearest_distance
from tood.metrics.selective import augrc, aurc
from tood.metrics.trajectory import (
    Trajectory,
    accuracy_forgetting,
    average_incremental_accuracy,
    mean_std,
    near_far_mean,
)

__all__ = [
    "Trajectory",
    "accuracy_forgetting",
    "augrc",
    "aupr_in",
    "aupr_out",
    "aurc",
    "auroc",
    "average_incremental_accuracy",
    "bootstrap",
    "confidence_gap",
    "correlation",
    "evaluate",
    "evaluate_tasks",
    "fpr_at_id_recall",
    "fpr_at_ood_recall",
    "linear_cka",
    "mean_std",
    "near_far_mean",
    "nearest_distance",
]

"""Metrics of OOD detection, of trajectories along a stream, of representations and of selective classification."""

from tood.metrics.detection import (
    aupr_in,
    aupr_out,
    auroc,
    evaluate,
    evaluate_tasks,
    fpr_at_id_recall,
    fpr_at_ood_recall,
)
from tood.metrics.representation import confidence_gap, linear_cka, nearest_distance
from tood.metrics.selective import augrc, aurc
from tood.metrics.trajectory import (
    Trajectory,
    accuracy_forgetting,
    average_incremental_accuracy,
    mean_std,
    near_far_mean,
)

__all__ = ["aupr_in", "aupr_out", "auroc", "evaluate", "evaluate_tasks", "fpr_at_id_recall", "fpr_at_ood_recall"]
__all__ += ["confidence_gap", "linear_cka", "nearest_distance"]
__all__ += ["augrc", "aurc"]
__all__ += ["Trajectory", "accuracy_forgetting", "average_incremental_accuracy", "mean_std", "near_far_mean"]

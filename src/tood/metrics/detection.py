"""Metrics of OOD detection: AUROC, two FPRs and two AUPRs from one sort; a score is higher for ID.

Scores of different precision are compared exactly.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from tood.arrays import FloatArray, IntArray, finite, floats, indices
from tood.errors import ToodError
from tood.metrics.comparison import Comparison, Method


def auroc(id_scores: Any, ood_scores: Any) -> float:
    """The probability that an ID sample scores higher than an OOD sample, ties counted half.

    Parameters
    ----------
    id_scores, ood_scores:
        ``[n]`` and ``[m]``, NumPy or torch, higher = ID.

    Examples
    --------
    >>> auroc([3.0, 2.0, 2.0], [1.0, 2.0])
    0.8333333333333334
    """
    return _compare(id_scores, ood_scores).auroc()


def fpr_at_id_recall(id_scores: Any, ood_scores: Any, recall: float = 0.95) -> float:
    """The share of OOD samples accepted at the highest threshold that accepts at least ``recall`` of the ID samples.

    A sample is accepted when its score is at least the threshold. This is the FPR@95 of the paper's text.

    Parameters
    ----------
    id_scores, ood_scores:
        ``[n]`` and ``[m]``, NumPy or torch, higher = ID.
    recall:
        The share of ID samples to accept, above 0 and at most 1.

    Examples
    --------
    >>> fpr_at_id_recall([4.0, 3.0, 2.0, 1.0], [2.5, 0.0], recall=0.75)
    0.5
    """
    return _compare(id_scores, ood_scores).fpr_at_id_recall(_checked_share("recall", recall))


def fpr_at_ood_recall(id_scores: Any, ood_scores: Any, recall: float = 0.95) -> float:
    """The share of ID samples rejected at the lowest threshold that rejects at least ``recall`` of the OOD samples.

    A sample is rejected when its score is at most the threshold. OpenOOD and the paper's tables report this FPR@95.

    Parameters
    ----------
    id_scores, ood_scores:
        ``[n]`` and ``[m]``, NumPy or torch, higher = ID.
    recall:
        The share of OOD samples to reject, above 0 and at most 1.

    Examples
    --------
    >>> fpr_at_ood_recall([4.0, 3.0, 2.0, 1.0], [2.5, 0.0], recall=0.5)
    0.0
    >>> fpr_at_ood_recall([4.0, 3.0, 2.0, 1.0], [2.5, 0.0])
    0.5
    """
    return _compare(id_scores, ood_scores).fpr_at_ood_recall(_checked_share("recall", recall))


def aupr_in(id_scores: Any, ood_scores: Any, method: Method = "average_precision") -> float:
    """The area under the precision-recall curve with ID as the positive class.

    Parameters
    ----------
    id_scores, ood_scores:
        ``[n]`` and ``[m]``, NumPy or torch, higher = ID.
    method:
        ``"average_precision"``, the step-wise area, or ``"trapezoid"``, the linear interpolation that OpenOOD reports.

    Examples
    --------
    >>> aupr_in([3.0, 1.0], [2.0])
    0.8333333333333333
    >>> aupr_in([3.0, 1.0], [2.0], method="trapezoid")
    0.7916666666666666
    """
    return _compare(id_scores, ood_scores).aupr_in(method)


def aupr_out(id_scores: Any, ood_scores: Any, method: Method = "average_precision") -> float:
    """The area under the precision-recall curve with OOD as the positive class; see :func:`aupr_in`.

    >>> aupr_out([3.0, 1.0], [2.0])
    0.5
    """
    return _compare(id_scores, ood_scores).aupr_out(method)


def evaluate(id_scores: Any, ood_scores: Any, recall: float = 0.95) -> dict[str, float]:
    """All five metrics, by the name of their function, from one sort.

    >>> evaluate([3.0, 1.0], [2.0, 0.0])["auroc"]
    0.75
    """
    return _compare(id_scores, ood_scores).all(_checked_share("recall", recall))


def evaluate_tasks(
    id_scores: Any, id_tasks: Any, ood_scores: Any, num_tasks: int | None = None, recall: float = 0.95
) -> tuple[dict[str, npt.NDArray[np.float64]], dict[str, float]]:
    """All five metrics of each task seen at one step against one OOD set, which is sorted once.

    Parameters
    ----------
    id_scores:
        ``[n]``, the ID samples of all tasks seen, in any order.
    id_tasks:
        ``[n]``, the task of each, 0 to ``num_tasks - 1``; every task has at least one sample.
    ood_scores:
        ``[m]``.
    num_tasks:
        The number of tasks seen; by default one more than the largest in ``id_tasks``.
    recall:
        Recall of both FPRs.

    Returns
    -------
    ``(by_task, pooled)``: under each metric's name an array ``[num_tasks]``, one value per task with its own
    thresholds, and one value over all ID samples together.

    Examples
    --------
    >>> by_task, pooled = evaluate_tasks([3.0, 1.0, 4.0], [0, 0, 1], [2.0])
    >>> by_task["auroc"], round(pooled["auroc"], 4)
    (array([0.5, 1. ]), 0.6667)
    """
    recall = _checked_share("recall", recall)
    ids, oods = _checked_scores(id_scores, ood_scores)
    tasks = indices(id_tasks, "id_tasks", length=len(ids))
    sizes = _task_sizes(tasks, num_tasks)
    grouped = np.split(ids[np.lexsort((ids, tasks))], np.cumsum(sizes)[:-1])  # each in ascending order
    pooled = Comparison(np.sort(ids), np.sort(oods))
    each = [Comparison(own, pooled.oods).all(recall) for own in grouped]
    return {name: np.array([values[name] for values in each]) for name in each[0]}, pooled.all(recall)


def _compare(id_scores: Any, ood_scores: Any) -> Comparison:
    ids, oods = _checked_scores(id_scores, ood_scores)
    return Comparison(np.sort(ids), np.sort(oods))


def _checked_scores(id_scores: Any, ood_scores: Any) -> tuple[FloatArray, FloatArray]:
    """Both score arrays, finite and in one precision that holds the values of either."""
    ids, oods = floats(id_scores, "id_scores", ndim=1), floats(ood_scores, "ood_scores", ndim=1)
    for name, scores in (("id_scores", ids), ("ood_scores", oods)):
        if len(finite(scores, name)) == 0:
            raise ToodError(f"{name}: expected at least one score, found none")
    dtype = np.result_type(ids, oods)
    return ids.astype(dtype, copy=False), oods.astype(dtype, copy=False)


def _checked_share(name: str, share: float) -> float:
    if not 0 < share <= 1:
        raise ToodError(f"{name}: expected a share above 0 and at most 1, found {share}")
    return float(share)


def _task_sizes(tasks: IntArray, num_tasks: int | None) -> IntArray:
    """The number of samples of each task; raises if a task has none."""
    count = int(tasks.max()) + 1 if num_tasks is None else num_tasks
    if tasks.min() < 0 or tasks.max() >= count:
        raise ToodError(f"id_tasks: expected tasks 0 to {count - 1}, found {tasks.min()} to {tasks.max()}")
    sizes = np.bincount(tasks, minlength=count)
    if not sizes.all():
        raise ToodError(f"id_tasks: expected a sample of each of {count} tasks, found none of task {sizes.argmin()}")
    return sizes

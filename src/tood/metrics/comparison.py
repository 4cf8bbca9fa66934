"""Two sorted arrays of scores and the metrics that follow from the counts of one among the other.

Every metric is a ratio, or a mean of ratios, of whole numbers, so ties are exact and no threshold grid is involved.
"""

from __future__ import annotations

import math
from functools import cached_property
from typing import Literal, TypeAlias, get_args

import numpy as np
import numpy.typing as npt

from tood.arrays import FloatArray, IntArray
from tood.errors import UnknownNameError

Method: TypeAlias = Literal["average_precision", "trapezoid"]


class Comparison:
    """Sorted ID scores ``[n]`` and OOD scores ``[m]``, the counts of one among the other, and the metrics.

    With ID positive, the threshold at an ID sample selects everything not below it; with OOD positive, the threshold
    at an OOD sample selects everything not above it.
    """

    def __init__(self, ids: FloatArray, oods: FloatArray) -> None:
        self.ids, self.oods = ids, oods
        self.n, self.m = len(ids), len(oods)

    @cached_property
    def below(self) -> IntArray:
        """``[n]``: number of OOD samples below each ID sample."""
        return self.oods.searchsorted(self.ids)

    @cached_property
    def not_above(self) -> IntArray:
        """``[n]``: number of OOD samples not above each ID sample."""
        return self.oods.searchsorted(self.ids, side="right")

    @cached_property
    def ids_not_above(self) -> IntArray:
        """``[m]``: number of ID samples not above each OOD sample."""
        # An ID sample does not lie above the j-th OOD sample exactly when at most j OOD samples lie below it.
        return np.bincount(self.below, minlength=self.m + 1)[: self.m].cumsum()

    def auroc(self) -> float:
        """The share of pairs in which the ID sample scores higher, ties counted half."""
        # Doubled, so that a tie, which counts one half, is a whole number.
        return float((self.below.sum() + self.not_above.sum()) / (2 * self.n * self.m))

    def fpr_at_id_recall(self, recall: float) -> float:
        """The share of OOD samples accepted with ``recall`` of the ID samples."""
        threshold = self.n - least_count(recall, self.n)
        return float((self.m - self.below[threshold]) / self.m)

    def fpr_at_ood_recall(self, recall: float) -> float:
        """The share of ID samples rejected with ``recall`` of the OOD samples."""
        threshold = least_count(recall, self.m) - 1
        return float(self.ids_not_above[threshold] / self.n)

    def aupr_in(self, method: Method = "average_precision") -> float:
        """The area under the precision-recall curve with ID as the positive class."""
        first, last = ranks(self.ids)
        area = precision(self.n - first, self.m - self.below).mean()
        if _is_trapezoid(method):
            area = (area + precision(self.n - last, self.m - self.not_above).mean()) / 2
        return float(area)

    def aupr_out(self, method: Method = "average_precision") -> float:
        """The area under the precision-recall curve with OOD as the positive class."""
        first, last = ranks(self.oods)
        area = precision(last, self.ids_not_above).mean()
        if _is_trapezoid(method):
            area = (area + precision(first, self.ids.searchsorted(self.oods)).mean()) / 2
        return float(area)

    def all(self, recall: float) -> dict[str, float]:
        """All five metrics by name."""
        return {
            "auroc": self.auroc(),
            "fpr_at_id_recall": self.fpr_at_id_recall(recall),
            "fpr_at_ood_recall": self.fpr_at_ood_recall(recall),
            "aupr_in": self.aupr_in(),
            "aupr_out": self.aupr_out(),
        }


def ranks(ordered: FloatArray) -> tuple[IntArray, IntArray]:
    """For each entry of a sorted array, the number of entries below it, and of those not above it."""
    starts = np.flatnonzero(np.append(True, ordered[1:] != ordered[:-1]))
    ends = np.append(starts[1:], len(ordered))
    return np.repeat(starts, ends - starts), np.repeat(ends, ends - starts)


def precision(positives: IntArray, negatives: IntArray) -> npt.NDArray[np.float64]:
    """The precision of each selection from its counts of positives and negatives; 1 if nothing is selected.

    The step-wise area is the mean over positives of the precision at their threshold. The trapezoid's other end is the
    threshold before it, which selects only samples strictly beyond: none at the start of the curve.
    """
    selected = positives + negatives
    return np.maximum(positives, selected == 0) / np.maximum(selected, 1)


def least_count(recall: float, total: int) -> int:
    """The least k with ``k / total >= recall``, whatever ``recall * total`` is rounded to."""
    count = max(1, math.ceil(recall * total))
    if (count - 1) / total >= recall:
        return count - 1
    return count if count / total >= recall else count + 1


def _is_trapezoid(method: Method) -> bool:
    if method not in get_args(Method):
        raise UnknownNameError("method", method, get_args(Method))
    return method == "trapezoid"

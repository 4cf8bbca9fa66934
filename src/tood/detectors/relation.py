"""Neural relation graph: how strongly a sample is related to the fit samples."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

import numpy as np

from tood.arrays import FloatArray
from tood.detectors.bank import Bank, rows_at_once
from tood.detectors.base import Grid
from tood.detectors.outputs import Rows
from tood.detectors.registry import register
from tood.detectors.rowwise import softmax, unit

GROUP = 16  # rows whose bank samples are chosen together
SLACK = 1e-3  # share of the threshold, far above rounding


@register
class Relation(Bank):
    """Mean relation to the fit samples: the product of feature similarity and of agreement in class probabilities.

    ``r_i = max(0, ẑ·ẑ_i) · (p·p_i)`` with features of unit length; the score is the mean of ``r_i^power`` over the fit
    samples with ``r_i`` above a threshold. (The authors sum. The mean ranks alike and does not grow with the bank.)

    Parameters
    ----------
    power:
        Exponent of a relation.
    threshold:
        Weaker relations count as zero.
    size:
        Keep at most this many fit samples, a seeded sample balanced over classes; None keeps all.
    seed:
        Seed of that sample.
    """

    name = "relation"
    title = "Relation"
    needs = frozenset({"logits", "features"})
    citation = (
        "Kim et al., Neural Relation Graph: A Unified Framework for Identifying Label Noise and Outlier Data, "
        "NeurIPS 2023"
    )
    grid: ClassVar[Grid] = {"power": (1, 2, 4, 6, 8)}
    refit = frozenset({"size", "seed"})

    def __init__(self, power: float = 1, threshold: float = 0.03, size: int | None = None, seed: int = 0) -> None:
        self.power = power
        self.threshold = threshold
        self.size = size
        self.seed = seed

    def _check(self) -> None:
        super()._check()
        self._number("power", 0.01, 100)
        self._number("threshold", 0, 1)

    def _entries(self, rows: Rows) -> FloatArray:
        return np.concatenate([unit(rows.features), softmax(rows.logits)], axis=1)

    def _prepare(self, dtype: np.dtype[Any]) -> tuple[FloatArray, FloatArray]:
        """``[N, D]`` and ``[N, C]``: directions and probabilities of the bank."""
        parts = np.split(self.bank_, [self.shape_[1]], axis=1)
        directions, posteriors = (part.astype(dtype, order="C") for part in parts)
        return directions, posteriors

    def _score(self, rows: Rows, prepared: tuple[FloatArray, FloatArray]) -> FloatArray:
        directions, posteriors = prepared
        z, p = unit(rows.features), softmax(rows.logits)
        out = np.empty(len(z), dtype=z.dtype)
        for some, near in related(p, posteriors, float(self.threshold)):
            relations = z[some] @ directions[near].T
            np.maximum(relations, 0, out=relations)
            relations *= p[some] @ posteriors[near].T
            relations[relations <= self.threshold] = 0
            if self.power != 1:
                relations **= float(self.power)
            out[some] = relations.sum(axis=1, dtype=np.float64) / len(posteriors)
        return out


def related(p: FloatArray, posteriors: FloatArray, threshold: float) -> Iterator[tuple[slice, Any]]:
    """Yield some rows of ``p``, and which bank samples may relate to one of them above the threshold.

    No relation exceeds ``p·p_i``, so none of a group of rows exceeds ``q·p_i`` with q the largest probability of each
    class in the group. With many classes few bank samples are left, and the other products are never computed.
    """
    step = rows_at_once(len(posteriors))
    for start in range(0, len(p), step):
        end = min(start + step, len(p))
        groups = np.arange(start, end, GROUP)
        bounds = np.maximum.reduceat(p[:end], groups, axis=0) @ posteriors.T
        near = bounds > (1 - SLACK) * threshold
        if 2 * np.count_nonzero(near) > near.size:  # rows of the bank are copied, which must be worth it
            yield slice(start, end), slice(None)
        else:
            yield from (
                (slice(g, min(g + GROUP, end)), np.flatnonzero(own)) for g, own in zip(groups, near, strict=True)
            )

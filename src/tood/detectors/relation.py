"""Neural relation graph: how strongly a sample is related to the fit samples."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from tood.arrays import FloatArray
from tood.detectors.bank import Bank, rows_at_once
from tood.detectors.base import Grid
from tood.detectors.outputs import Rows
from tood.detectors.registry import register
from tood.detectors.rowwise import softmax, unit


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
        """``[D, N]`` and ``[C, N]``: directions and probabilities of the bank."""
        dimensions = self.shape_[1]
        entries = self.bank_.T.astype(dtype)
        return entries[:dimensions], entries[dimensions:]

    def _score(self, rows: Rows, prepared: tuple[FloatArray, FloatArray]) -> FloatArray:
        directions, posteriors = prepared
        z, p = unit(rows.features), softmax(rows.logits)
        out = np.empty(len(z), dtype=z.dtype)
        step = rows_at_once(directions.shape[1])
        for start in range(0, len(z), step):
            relations = z[start : start + step] @ directions
            np.maximum(relations, 0, out=relations)
            relations *= p[start : start + step] @ posteriors
            relations[relations <= self.threshold] = 0
            if self.power != 1:
                relations **= float(self.power)
            out[start : start + step] = relations.mean(axis=1, dtype=np.float64)
        return out

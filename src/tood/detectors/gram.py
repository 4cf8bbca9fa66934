"""Gram matrices of the penultimate features."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from tood.arrays import FloatArray
from tood.detectors.base import Detector
from tood.detectors.outputs import FitData, Rows
from tood.detectors.registry import register

SMALLEST = 1e-3  # least divisor, as a share of the class's largest bound


class Bounds(NamedTuple):
    """Bounds per class, and the divisors of deviations below and above them; each ``[P, C, D]``."""

    lowest: FloatArray
    highest: FloatArray
    below: FloatArray
    above: FloatArray


@register
class Gram(Detector):
    """Minus the deviation of the feature's Gram matrices from the range seen in the predicted class.

    The method's Gram matrices of order p are ``(F^p F^pᵀ)^(1/p)`` of a layer's feature maps F, summed along rows.
    Outputs hold one layer, the pooled penultimate features, so F is the vector z and the sums are
    ``g_{p,i} = (z_i^p Σ_j z_j^p)^(1/p)`` with the sign kept. Per predicted class, the smallest and the largest
    ``g_{p,i}`` of the fit samples are kept. A sample's deviation is the sum over p and i of how far it lies outside,
    relative to the bound that it violates. Classes that were never predicted have the bounds of all fit samples.

    With several layers the method is stronger. Here it costs no second pass through the network.

    Parameters
    ----------
    orders:
        Gram matrices of order 1 to this.
    """

    name = "gram"
    title = "Gram"
    needs = frozenset({"logits", "features"})
    citation = "Sastry and Oore, Detecting Out-of-Distribution Examples with Gram Matrices, ICML 2020"
    refit = frozenset({"orders"})

    lowest_: FloatArray  # [P, C, D]
    highest_: FloatArray  # [P, C, D]

    def __init__(self, orders: int = 10) -> None:
        self.orders = orders

    def _check(self) -> None:
        self._number("orders", 1, 64, whole=True)

    def _fit(self, data: FitData) -> None:
        lowest = highest = np.empty(0)
        for rows in data:
            if not lowest.size:
                lowest = np.full((self.orders, data.columns, data.dimensions), np.inf, dtype=rows.features.dtype)
                highest = -lowest
            predicted = rows.logits.argmax(axis=1)
            order = np.argsort(predicted, kind="stable")
            seen, first = np.unique(predicted[order], return_index=True)
            for p, sums in enumerate(gram_sums(rows.features[order], self.orders)):
                lowest[p, seen] = np.minimum(lowest[p, seen], np.minimum.reduceat(sums, first))
                highest[p, seen] = np.maximum(highest[p, seen], np.maximum.reduceat(sums, first))
        known = np.isfinite(lowest[0, :, 0])[None, :, None]
        self.lowest_ = np.where(known, lowest, lowest.min(axis=1, keepdims=True))
        self.highest_ = np.where(known, highest, highest.max(axis=1, keepdims=True))

    def _prepare(self, dtype: np.dtype[Any]) -> Bounds:
        parts = [np.abs(self.lowest_), np.abs(self.highest_)]
        largest = np.maximum(*parts).max(axis=2, keepdims=True)
        floor = np.where(largest > 0, SMALLEST * largest, 1)
        below, above = (np.maximum(part, floor) for part in parts)
        return Bounds(*(part.astype(dtype) for part in (self.lowest_, self.highest_, below, above)))

    def _score(self, rows: Rows, prepared: Bounds) -> FloatArray:
        predicted = rows.logits.argmax(axis=1)
        result = np.zeros(len(predicted), dtype=rows.features.dtype)
        for p, sums in enumerate(gram_sums(rows.features, self.orders)):
            lowest, highest, below, above = (part[p][predicted] for part in prepared)
            result -= (np.maximum(lowest - sums, 0) / below).sum(axis=1)
            result -= (np.maximum(sums - highest, 0) / above).sum(axis=1)
        return result


def gram_sums(features: FloatArray, orders: int) -> list[FloatArray]:
    """Row sums ``[n, D]`` of the Gram matrices of order 1 to ``orders``.

    ``|z_i^p Σ_j z_j^p|^(1/p) = |z_i| · |Σ_j z_j^p|^(1/p)``; divided by the largest entry first, no power overflows.
    """
    largest = np.abs(features).max(axis=1, keepdims=True)
    scaled = features / np.where(largest > 0, largest, 1)
    power, sums = np.ones_like(scaled), []
    for p in range(1, orders + 1):
        power = power * scaled
        total = power.sum(axis=1, keepdims=True)
        root = np.abs(total) ** (1 / p) * np.sign(total) * largest
        sums.append((np.abs(features) if p % 2 == 0 else features) * root)
    return sums

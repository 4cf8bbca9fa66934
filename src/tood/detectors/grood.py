"""GROOD: gradient of a nearest-prototype loss with respect to a prototype of the unknown."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from tood.arrays import Float64Array, FloatArray
from tood.detectors.bank import Bank, rows_at_once
from tood.detectors.distance import Means
from tood.detectors.outputs import FitData, Rows
from tood.detectors.registry import register
from tood.detectors.rowwise import norms
from tood.detectors.statistics import Moments


class Gradients(NamedTuple):
    """Prototypes and the bank, ready to score."""

    prototypes: Means  # of the classes, and last the unknown
    unknown: Float64Array  # [D]
    bank: Float64Array  # [N, D], gradients of fit samples
    half_squares: Float64Array  # [N], half their squared lengths


@register
class GROOD(Bank):
    """Minus the distance from a sample's gradient to the nearest gradient of a fit sample.

    Prototypes are the class means ``p_c`` and one of the unknown, ``p_0``. With the logits ``-‖z - p_k‖``, the gradient
    of the cross-entropy with respect to ``p_0`` is ``π_0 (z - p_0) / ‖z - p_0‖``, where ``π_0`` is the softmax
    probability of the unknown; no backward pass is needed. Gradients of the correctly classified fit samples make the
    bank (of all fit samples if none is correct). All-zero features say nothing about a class and are left out of it.

    ``p_0`` is the mean over the fit samples of ``(z + p_second) / 2``, with the class of the second largest logit. The
    authors mix the maps of an early layer in this way, or use noise images or OOD validation samples instead. Outputs
    hold the penultimate features, so the mixture is made there.

    ``π_0`` falls exponentially with distances. If they reach about 100, scores of samples near a class are 0 in float32
    and tie; float64 outputs keep them apart.

    Parameters
    ----------
    size:
        Keep at most this many gradients, a seeded sample balanced over classes; None keeps all.
    seed:
        Seed of that sample.
    """

    name = "grood"
    title = "GROOD"
    needs = frozenset({"logits", "features", "labels"})
    citation = "ElAraby et al., GROOD: Gradient-Aware Out-of-Distribution Detection, TMLR 2025"
    refit = frozenset({"size", "seed"})
    passes = 5

    prototypes_: Float64Array  # [K, D], of the classes seen
    unknown_: Float64Array  # [D]

    def __init__(self, size: int | None = 10_000, seed: int = 0) -> None:
        self.size = size
        self.seed = seed

    def _fit(self, data: FitData) -> None:
        moments = Moments.of(data, scatter=False)
        seen = np.flatnonzero(moments.seen)
        self.prototypes_ = moments.class_means[seen]
        mixed, self._any_usable = np.zeros(data.dimensions), False
        for rows in data:
            among = rows.logits[:, seen]
            if len(seen) > 1:
                among[np.arange(len(among)), among.argmax(axis=1)] = -np.inf
            second = among.argmax(axis=1)
            mixed += (rows.features + self.prototypes_[second]).sum(axis=0) / 2
            self._any_usable |= bool(usable(rows).any())
        self.unknown_ = mixed / moments.total
        super()._fit(data)

    def _kept(self, rows: Rows) -> Any:
        return usable(rows) if self._any_usable else slice(None)

    def _entries(self, rows: Rows) -> FloatArray:
        return gradients(rows.features, self._means(), self.unknown_)

    def _means(self) -> Means:
        return Means.of(np.concatenate([self.prototypes_, self.unknown_[None]]))

    def _prepare(self, dtype: np.dtype[Any]) -> Gradients:
        bank = self.bank_.astype(np.float64)
        return Gradients(self._means(), self.unknown_, bank, np.einsum("nd,nd->n", bank, bank) / 2)

    def _score(self, rows: Rows, prepared: Gradients) -> FloatArray:
        queries = gradients(rows.features, prepared.prototypes, prepared.unknown)
        out = np.empty(len(queries))
        step = rows_at_once(len(prepared.bank))
        for start in range(0, len(queries), step):
            block = queries[start : start + step]
            nearest = (block @ prepared.bank.T - prepared.half_squares).argmax(axis=1)
            out[start : start + step] = -norms(block - prepared.bank[nearest])
        return out


def usable(rows: Rows) -> npt.NDArray[np.bool_]:
    """``[n]``: correctly classified, and not all zero."""
    result: npt.NDArray[np.bool_] = (rows.logits.argmax(axis=1) == rows.classes) & rows.features.any(axis=1)
    return result


def gradients(features: FloatArray, prototypes: Means, unknown: Float64Array) -> Float64Array:
    """``[n, D]``: the gradient of each sample's loss with respect to the prototype of the unknown."""
    own, distances = prototypes.squared(features)
    distances += own[:, None]
    np.sqrt(np.maximum(distances, 0, out=distances), out=distances)
    np.subtract(distances[:, -1:], distances, out=distances)
    with np.errstate(over="ignore"):  # its probability is then 0
        unknown_probability = 1 / np.exp(distances, out=distances).sum(axis=1)
    away = features - unknown
    length = norms(away)
    result: Float64Array = away * (unknown_probability / np.where(length > 0, length, 1))[:, None]
    return result

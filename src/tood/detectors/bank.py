"""Nearest-neighbour detectors: they keep fit features and search the nearest ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from tood.arrays import FloatArray, IntArray
from tood.detectors.base import Detector, FitData, Rows, number, register
from tood.detectors.statistics import softmax, unit
from tood.energy import logsumexp

LOTS = 1 << 20  # numbers hashed at once


class Sample:
    """Seeded, class-balanced sample of rows that does not depend on their order or chunks.

    ``fit`` must not depend on order or chunks (:func:`tood.testing.check_detector`), so a row's rank in the draw is a
    hash of its own content: a random linear function of its bits. The rows of each class are ranked by their hashes,
    and the ``size`` rows with the lowest ranks stay: equally many of each class, or all of a class that has fewer.
    """

    def __init__(self, size: int, seed: int) -> None:
        self.size = size
        self.seed = seed
        self.parts: list[npt.NDArray[Any]] = []  # class, hash and entry of each row kept, ordered by class and hash

    def add(self, content: npt.NDArray[Any], classes: IntArray, entries: npt.NDArray[Any]) -> None:
        """Offer rows: the content that is hashed ``[n, ...]``, class ``[n]``, and the part to keep ``[n, ...]``."""
        parts = [classes, _draw_lots(content, self.seed), entries]
        if self.parts:
            parts = [np.concatenate(pair) for pair in zip(self.parts, parts, strict=True)]
        order = np.lexsort((parts[1], parts[0]))
        ordered = parts[0][order]
        rank = np.arange(len(order)) - np.searchsorted(ordered, ordered)
        order = order[np.sort(np.lexsort((ordered, rank))[: self.size])]
        self.parts = [part[order] for part in parts]


def balanced(
    data: FitData,
    size: int | None,
    seed: int,
    entries: Callable[[Rows], npt.NDArray[Any]] = lambda rows: rows.features,
    usable: Callable[[Rows], Any] = lambda rows: slice(None),
) -> tuple[npt.NDArray[Any], IntArray]:
    """Entries of the usable rows and their classes: a seeded sample of ``size``, balanced over classes; None is all."""
    if size is None:
        blocks = [(entries(rows)[usable(rows)], rows.classes[usable(rows)]) for rows in data]
        kept, classes = (np.concatenate(part) for part in zip(*blocks, strict=True))
        return kept, classes
    sample = Sample(size, seed)
    for rows in data:
        chosen = usable(rows)
        sample.add(rows.features[chosen], rows.classes[chosen], entries(rows)[chosen])
    return sample.parts[2], sample.parts[0]


def _draw_lots(content: npt.NDArray[Any], seed: int) -> npt.NDArray[np.uint64]:
    """``[n]``: a random linear function of the bits of each row in float32, so the same whatever the precision."""
    content = content.reshape(len(content), int(np.prod(content.shape[1:])))
    weights = np.random.default_rng(seed).integers(0, 1 << 64, size=content.shape[1], dtype=np.uint64)
    step = max(1, LOTS // max(1, content.shape[1]))
    blocks = (content[start : start + step] for start in range(0, max(1, len(content)), step))
    words = (np.ascontiguousarray(block, dtype=np.float32).view(np.uint32) for block in blocks)
    return np.concatenate([block.astype(np.uint64) @ weights for block in words])


def top_products(queries: FloatArray, bank: FloatArray, k: int) -> FloatArray:
    """``[n, k]``, unordered: the largest inner products of each query ``[n, D]`` with the rows of a bank ``[N, D]``."""
    products = queries @ bank.T
    products.partition(len(bank) - k, axis=1)
    return products[:, len(bank) - k :]


class Bank(Detector):
    """A detector that keeps fit samples: all of them, or a seeded sample balanced over classes."""

    size: int | None
    seed: int
    bank_: FloatArray  # [N, D]
    bank_classes: IntArray  # [N], known until fit returns

    def _width(self) -> int:
        return len(self.bank_)

    def _entries(self, rows: Rows) -> FloatArray:
        """The part of some rows that the bank keeps."""
        return unit(rows.features)

    def _usable(self, rows: Rows) -> Any:
        """Which rows may enter the bank."""
        return slice(None)

    def _size(self, data: FitData) -> int | None:
        """Number of fit samples that the bank keeps; None means all."""
        return self.size

    def _fit(self, data: FitData) -> None:
        self.bank_, self.bank_classes = balanced(data, self._size(data), self.seed, self._entries, self._usable)


class _Neighbours(Bank):
    """A bank that is searched for the k rows with the largest inner products."""

    k: int

    def _prepare(self, dtype: np.dtype[Any]) -> FloatArray:
        if self.k > len(self.bank_):
            self._warn(f"the bank has {len(self.bank_)} samples, fewer than k = {self.k}; all of them are used")
        return self.bank_.astype(dtype, copy=False)

    def _top(self, rows: Rows, bank: FloatArray) -> FloatArray:
        """``[n, k]``: the largest inner products of the features' directions with the bank."""
        return top_products(unit(rows.features), bank, min(self.k, len(bank)))


@register
class KNN(_Neighbours):
    """Minus the squared distance to the k-th nearest fit feature, all of unit length.

    ``‖a - b‖² = 2 - 2 a·b``: the k-th largest cosine. An all-zero feature has no direction; its cosine with anything
    counts as 0. If a class has fewer than k samples in the bank, the k-th neighbour of its samples is in another class.
    The class then looks out-of-distribution, and a warning says so.

    Parameters
    ----------
    k:
        Which neighbour; if the bank is smaller, its farthest sample is used, with a warning.
    size:
        Keep at most this many fit features, a seeded sample balanced over classes (labels if given, else
        predictions); None keeps all.
    seed:
        Seed of that sample.
    """

    name = "knn"
    title = "KNN"
    needs = frozenset({"features"})
    citation = "Sun et al., Out-of-Distribution Detection with Deep Nearest Neighbors, ICML 2022"
    k: int = number(50, 1, whole=True, grid=(50, 100, 200, 500, 1000))
    size: int | None = number(None, 1, whole=True, none=True, refit=True)
    seed: int = number(0, 0, 1 << 63, whole=True, refit=True)

    def _fit(self, data: FitData) -> None:
        super()._fit(data)
        counts = np.bincount(self.bank_classes)
        self.fewest_ = int(counts[counts > 0].min())  # samples of the smallest class in the bank

    def _prepare(self, dtype: np.dtype[Any]) -> FloatArray:
        if self.fewest_ < self.k <= len(self.bank_):
            self._warn(
                f"k = {self.k} exceeds the {self.fewest_} samples of the smallest class, whose k-th neighbour is then "
                "in another class; use a smaller k"
            )
        return super()._prepare(dtype)

    def _score(self, rows: Rows, prepared: FloatArray) -> FloatArray:
        cosine = self._top(rows, prepared).min(axis=1)
        return np.asarray(np.minimum(2 * cosine - 2, cosine.dtype.type(0)))  # rounding could make it positive


@register
class NNGuide(_Neighbours):
    """Energy times the mean similarity to the most similar fit features, each weighted by its own energy.

    The bank is a seeded sample balanced over classes. OpenOOD uses the first batches of the loader instead. In the TOOD
    authors' runs that loader is not shuffled and starts with task 0, so their bank holds the first task only.

    Parameters
    ----------
    k:
        Number of similarities that are averaged; if the bank is smaller, all are used, with a warning.
    alpha:
        Share of the fit set that is kept in the bank; at least ``k`` samples are kept if there are so many.
    seed:
        Seed of that sample.
    """

    name = "nnguide"
    title = "NNGuide"
    needs = frozenset({"logits", "features"})
    citation = "Park et al., Nearest Neighbor Guidance for Out-of-Distribution Detection, ICCV 2023"
    k: int = number(100, 1, whole=True, grid=(100,), refit=True)
    alpha: float = number(0.01, 0, 1, grid=(0.01,), refit=True)
    seed: int = number(0, 0, 1 << 63, whole=True, refit=True)

    def _size(self, data: FitData) -> int | None:
        total = sum(len(rows.logits) for rows in data)
        size = max(self.k, int(np.ceil(self.alpha * total)))
        return size if size < total else None

    def _entries(self, rows: Rows) -> FloatArray:
        return unit(rows.features) * logsumexp(rows.logits)[:, None]

    def _score(self, rows: Rows, prepared: FloatArray) -> FloatArray:
        return self._top(rows, prepared).mean(axis=1) * logsumexp(rows.logits)


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
    power: float = number(1, 0.01, 100, grid=(1, 2, 4, 6, 8))
    threshold: float = number(0.03, 0, 1)
    size: int | None = number(None, 1, whole=True, none=True, refit=True)
    seed: int = number(0, 0, 1 << 63, whole=True, refit=True)

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
        relations = np.maximum(z @ directions.T, 0) * (p @ posteriors.T)
        relations[relations <= self.threshold] = 0
        if self.power != 1:
            relations **= float(self.power)
        return np.asarray(relations.mean(axis=1, dtype=np.float64))

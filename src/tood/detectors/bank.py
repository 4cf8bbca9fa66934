"""Nearest-neighbour detectors: they keep fit features and search the nearest ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias, cast

import numpy as np
import numpy.typing as npt

from tood.arrays import FloatArray, IntArray
from tood.detectors.base import Detector, number
from tood.detectors.registry import register
from tood.detectors.rows import FitData, Rows
from tood.detectors.rowwise import softmax, unit
from tood.energy import logsumexp
from tood.errors import MissingDependencyError

LOTS = 1 << 20  # numbers hashed at once
PRODUCTS = 1 << 24  # similarities held at once: 64 MiB of float32
CACHED = 1 << 20  # similarities that stay in the cache
LEAST = 10_000  # with faiss: a smaller bank is searched whole, because one product of matrices is as fast
TRAINING = 25_000  # with faiss: rows that place the lists and the quantisers
CANDIDATES = 2  # with faiss: per neighbour; their products are computed exactly


class Sample:
    """Seeded, class-balanced sample of rows that does not depend on their order or chunks.

    ``fit`` must not depend on order or chunks (:func:`tood.testing.check_detector`), so a row's rank in the draw is a
    hash of its own content: a random linear function of its bits. In each class, the rows with the lowest hashes stay,
    ordered by class and hash.
    """

    rows: npt.NDArray[Any]
    classes: IntArray

    def __init__(self, quotas: IntArray, seed: int) -> None:
        self.quotas = quotas
        self.seed = seed
        self._kept: tuple[npt.NDArray[Any], ...] = ()

    def add(self, content: npt.NDArray[Any], classes: IntArray, rows: npt.NDArray[Any]) -> None:
        """Offer rows: the content that is hashed ``[n, ...]``, class ``[n]``, and the part to keep ``[n, ...]``."""
        offered: tuple[npt.NDArray[Any], ...] = (_draw_lots(content, self.seed), classes, rows)
        if self._kept:
            offered = tuple(np.concatenate(pair) for pair in zip(self._kept, offered, strict=True))
        order = np.lexsort(offered[:2])
        ordered = offered[1][order]
        rank = np.arange(len(order)) - np.searchsorted(ordered, ordered)
        self._kept = tuple(part[order[rank < self.quotas[ordered]]] for part in offered)
        _, self.classes, self.rows = self._kept


def quotas(counts: IntArray, size: int) -> IntArray:
    """Number of samples per class for a total of ``size``: equal, or all samples of a class that has fewer."""
    low, high = 0, int(counts.max())
    while low < high:  # the highest level that does not exceed the size
        middle = (low + high + 1) // 2
        low, high = (middle, high) if np.minimum(counts, middle).sum() <= size else (low, middle - 1)
    quota = np.minimum(counts, low)
    quota[np.flatnonzero(counts > low)[: size - quota.sum()]] += 1
    return quota


def balanced(
    data: FitData,
    size: Callable[[int], int | None],
    seed: int,
    entries: Callable[[Rows], npt.NDArray[Any]] = lambda rows: rows.features,
    usable: Callable[[Rows], Any] = lambda rows: slice(None),
) -> tuple[npt.NDArray[Any], IntArray]:
    """Entries of the usable rows and their classes: all, or a seeded sample balanced over classes.

    ``size`` gives, for the number of usable rows, that of the sample; None keeps all. The data are read twice.
    """
    counts = np.zeros((), dtype=np.int64)
    for rows in data:
        counts = counts + np.bincount(rows.classes[usable(rows)], minlength=data.columns)
    limit, total = size(int(counts.sum())), counts.sum()
    if limit is None or limit >= total:
        blocks = [(entries(rows)[usable(rows)], rows.classes[usable(rows)]) for rows in data]
        kept, classes = (np.concatenate(part) for part in zip(*blocks, strict=True))
        return kept, classes
    sample = Sample(quotas(counts, limit), seed)
    for rows in data:
        chosen = usable(rows)
        sample.add(rows.features[chosen], rows.classes[chosen], entries(rows)[chosen])
    return sample.rows, sample.classes


def _draw_lots(content: npt.NDArray[Any], seed: int) -> npt.NDArray[np.uint64]:
    """``[n]``: a random linear function of the bits of each row in float32, so the same whatever the precision."""
    content = content.reshape(len(content), -1)
    weights = np.random.default_rng(seed).integers(0, 1 << 64, size=content.shape[1], dtype=np.uint64)
    lots = np.empty(len(content), dtype=np.uint64)
    step = max(1, LOTS // max(1, content.shape[1]))
    for start in range(0, len(content), step):
        words = np.ascontiguousarray(content[start : start + step], dtype=np.float32).view(np.uint32)
        lots[start : start + step] = words.astype(np.uint64) @ weights
    return lots


def rows_at_once(size: int) -> int:
    """The number of queries whose products with a bank of ``size`` rows are held at once."""
    return max(1, min(PRODUCTS // size, max(256, CACHED // size)))


def top_products(queries: FloatArray, bank: FloatArray, k: int) -> FloatArray:
    """``[n, k]``, unordered: the largest inner products of each query ``[n, D]`` with the rows of a bank ``[N, D]``."""
    out = np.empty((len(queries), k), dtype=queries.dtype)
    step, last = rows_at_once(len(bank)), len(bank) - k
    for start in range(0, len(queries), step):
        products = queries[start : start + step] @ bank.T
        products.partition(last, axis=1)
        out[start : start + step] = products[:, last:]
    return out


class Bank(Detector):
    """A detector that keeps fit samples: all of them, or a seeded sample balanced over classes."""

    passes = 2
    size: int | None
    seed: int
    bank_: FloatArray  # [N, D]
    bank_classes: IntArray  # [N], known until fit returns

    def _entries(self, rows: Rows) -> FloatArray:
        """The part of some rows that the bank keeps."""
        return unit(rows.features)

    def _usable(self, rows: Rows) -> Any:
        """Which rows may enter the bank."""
        return slice(None)

    def _size(self, total: int) -> int | None:
        """Number of fit samples, of ``total``, that the bank keeps; None means all."""
        return self.size

    def _fit(self, data: FitData) -> None:
        self.bank_, self.bank_classes = balanced(data, self._size, self.seed, self._entries, self._usable)


class Index:
    """Approximate search with faiss: inverted lists of quantised rows, then exact products of the best candidates.

    Parameters
    ----------
    bank:
        ``[N, D]``, in random order.
    probe:
        Share of the lists that a query searches.
    """

    def __init__(self, bank: FloatArray, probe: float) -> None:
        try:
            import faiss
        except ImportError as error:
            raise MissingDependencyError("faiss-cpu", "faiss", "probe below 1 in a large bank") from error
        self._each = min(4, max(1, bank.shape[1] // 64))  # dimensions per quantiser of four bits
        rows = self._padded(bank)
        lists, width = int(np.sqrt(len(rows))), rows.shape[1]
        text = f"IVF{lists},PQ{width // self._each}x4fs,RFlat"
        self._index = cast(Any, faiss).index_factory(width, text, faiss.METRIC_INNER_PRODUCT)
        self._index.train(rows[:TRAINING])
        self._index.add(rows)
        self._index.k_factor = CANDIDATES
        cast(Any, faiss).downcast_index(self._index.base_index).nprobe = int(np.ceil(probe * lists))

    def top_products(self, queries: FloatArray, k: int) -> tuple[FloatArray, npt.NDArray[np.bool_]]:
        """``[n, k]``: the largest inner products found; ``[n]``: whether the lists held fewer than k rows."""
        products, rows = self._index.search(self._padded(queries), k)
        return products.astype(queries.dtype, copy=False), (rows < 0).any(axis=1)

    def _padded(self, x: FloatArray) -> FloatArray:
        """``x`` in float32 with columns of zeros at the end, so that quantisers share the dimensions evenly."""
        return np.pad(x.astype(np.float32, copy=False), ((0, 0), (0, -x.shape[1] % self._each)))


Searched: TypeAlias = tuple[FloatArray, int, Index | None]  # the bank [N, D], k, and the approximate index


class _Neighbours(Bank):
    """A bank that is searched for the k rows with the largest inner products."""

    block = 1 << 21
    k: int
    probe: float
    fewest_: int = 1 << 62  # samples of the smallest class in the bank

    def _fit(self, data: FitData) -> None:
        super()._fit(data)
        counts = np.bincount(self.bank_classes)
        self.fewest_ = int(counts[counts > 0].min())
        if self.probe < 1:
            self.bank_ = self.bank_[np.argsort(_draw_lots(self.bank_, self.seed), kind="stable")]

    def _prepare(self, dtype: np.dtype[Any]) -> Searched:
        if self.k > len(self.bank_):
            self._warn(f"the bank has {len(self.bank_)} samples, fewer than k = {self.k}; all of them are used")
        index = Index(self.bank_, self.probe) if self.probe < 1 and len(self.bank_) >= LEAST else None
        return self.bank_.astype(dtype, copy=False), min(self.k, len(self.bank_)), index

    def _top(self, rows: Rows, prepared: Searched) -> FloatArray:
        """``[n, k]``: the largest inner products of the features' directions with the bank."""
        bank, k, index = prepared
        queries = unit(rows.features)
        if index is None:
            return top_products(queries, bank, k)
        products, short = index.top_products(queries, k)
        if short.any():
            products[short] = top_products(queries[short], bank, k)
        return products


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
    probe:
        1 is exact. Below 1, the share of the bank that each sample searches with faiss, an approximate index
        (``pip install "tood[faiss]"``). With 0.16 a bank of 50,000 is searched six times as fast, and scores have a
        rank correlation of 0.999 with the exact ones, measured with 512 features; with very few features it is lower.
        A bank below 10,000 samples is always searched whole.
    """

    name = "knn"
    title = "KNN"
    needs = frozenset({"features"})
    citation = "Sun et al., Out-of-Distribution Detection with Deep Nearest Neighbors, ICML 2022"
    k: int = number(50, 1, whole=True, grid=(50, 100, 200, 500, 1000))
    size: int | None = number(None, 1, whole=True, none=True, refit=True)
    seed: int = number(0, 0, 1 << 63, whole=True, refit=True)
    probe: float = number(1.0, 1e-6, 1, refit=True)

    def _prepare(self, dtype: np.dtype[Any]) -> Searched:
        if self.fewest_ < self.k <= len(self.bank_):
            self._warn(
                f"k = {self.k} exceeds the {self.fewest_} samples of the smallest class, whose k-th neighbour is then "
                "in another class; use a smaller k"
            )
        return super()._prepare(dtype)

    def _score(self, rows: Rows, prepared: Searched) -> FloatArray:
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
    probe:
        Share of the bank that each sample searches, as for :class:`KNN`; 0.08 is enough here. A bank below 10,000
        samples is searched whole. With the default ``alpha`` the bank is 1 % of the fit samples, so ``probe`` changes
        nothing below about a million of them.
    """

    name = "nnguide"
    title = "NNGuide"
    needs = frozenset({"logits", "features"})
    citation = "Park et al., Nearest Neighbor Guidance for Out-of-Distribution Detection, ICCV 2023"
    size = None
    k: int = number(100, 1, whole=True, grid=(100,), refit=True)
    alpha: float = number(0.01, 0, 1, grid=(0.01,), refit=True)
    seed: int = number(0, 0, 1 << 63, whole=True, refit=True)
    probe: float = number(1.0, 1e-6, 1, refit=True)

    def _size(self, total: int) -> int | None:
        return min(total, max(self.k, int(np.ceil(self.alpha * total))))

    def _entries(self, rows: Rows) -> FloatArray:
        return unit(rows.features) * logsumexp(rows.logits)[:, None]

    def _score(self, rows: Rows, prepared: Searched) -> FloatArray:
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
        out = np.empty(len(z), dtype=z.dtype)
        step = rows_at_once(len(posteriors))
        for some in (slice(start, start + step) for start in range(0, len(z), step)):
            relations = np.maximum(z[some] @ directions.T, 0) * (p[some] @ posteriors.T)
            relations[relations <= self.threshold] = 0
            if self.power != 1:
                relations **= float(self.power)
            out[some] = relations.mean(axis=1, dtype=np.float64)
        return out

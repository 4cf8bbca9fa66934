"""Nearest-neighbour detectors: they keep fit features and search the nearest ones."""

from __future__ import annotations

from typing import Any, ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt

from tood.arrays import FloatArray, IntArray
from tood.detectors.base import Detector, Grid
from tood.detectors.neighbours import LEAST, Index
from tood.detectors.outputs import FitData, Rows
from tood.detectors.registry import register
from tood.detectors.rowwise import unit
from tood.energy import logsumexp

LOTS = 1 << 20  # numbers hashed at once
PRODUCTS = 1 << 24  # similarities held at once: 64 MiB of float32
CACHED = 1 << 20  # similarities that stay in the cache


class Sample:
    """Seeded, class-balanced sample of rows that does not depend on their order or chunks.

    ``fit`` must not depend on order or chunks (:func:`tood.testing.check_detector`), so a row's rank in the draw is a
    hash of its own content: a random linear function of its bits. In each class, the rows with the lowest hashes stay.
    """

    def __init__(self, quotas: IntArray, seed: int) -> None:
        self.quotas = quotas
        self.seed = seed
        self._lots = np.empty(0, dtype=np.uint64)
        self._classes = np.empty(0, dtype=np.int64)
        self._rows: npt.NDArray[Any] | None = None

    def add(self, content: npt.NDArray[Any], classes: IntArray, rows: npt.NDArray[Any]) -> None:
        """Offer rows: the content that is hashed ``[n, ...]``, class ``[n]``, and the part to keep ``[n, ...]``."""
        lots = np.concatenate([self._lots, _draw_lots(content, self.seed)])
        classes = np.concatenate([self._classes, classes])
        order = np.lexsort((lots, classes))
        starts = np.searchsorted(classes[order], classes[order])
        kept = order[np.arange(len(order)) - starts < self.quotas[classes[order]]]
        chosen = np.empty((len(kept), *rows.shape[1:]), dtype=rows.dtype)
        old = kept < len(self._lots)
        if self._rows is not None:
            chosen[old] = self._rows[kept[old]]
        chosen[~old] = rows[kept[~old] - len(self._lots)]
        self._lots, self._classes, self._rows = lots[kept], classes[kept], chosen

    @property
    def rows(self) -> npt.NDArray[Any]:
        """The rows that were kept, ordered by class and hash."""
        assert self._rows is not None
        return self._rows

    @property
    def classes(self) -> IntArray:
        """The class of each row that was kept."""
        return self._classes


def quotas(counts: IntArray, size: int) -> IntArray:
    """Number of samples per class for a total of ``size``: equal, or all samples of a class that has fewer."""
    low, high = 0, int(counts.max())
    while low < high:  # the highest level that does not exceed the size
        middle = (low + high + 1) // 2
        low, high = (middle, high) if np.minimum(counts, middle).sum() <= size else (low, middle - 1)
    quota = np.minimum(counts, low)
    quota[np.flatnonzero(counts > low)[: size - quota.sum()]] += 1
    return quota


def balanced(data: FitData, size: int, seed: int) -> npt.NDArray[Any]:
    """``[n, D]``: features of a seeded sample of at most ``size`` rows, balanced over classes; reads the data twice."""
    counts = np.zeros((), dtype=np.int64)
    for rows in data:
        counts = counts + np.bincount(rows.classes, minlength=data.columns)
    sample = Sample(quotas(counts, size), seed)
    for rows in data:
        sample.add(rows.features, rows.classes, rows.features)
    return sample.rows


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
    """``[n, k]``, unordered: the k largest inner products of each query ``[n, D]`` with the rows of a bank ``[N, D]``.

    Exact. In a large bank, the products of a query are laid out in √(N/k) rows; the k largest of all lie in the k
    columns with the largest maxima, so only those columns are searched. ``np.partition`` of all products takes a third
    longer at 50,000 rows of 64 features, and the speed of kNN is a bar of ``benchmarks/detectors.py``.
    """
    size = len(bank)
    out = np.empty((len(queries), k), dtype=queries.dtype)
    step = rows_at_once(size)
    depth = int(np.sqrt(size / k))
    width = size // depth
    for start in range(0, len(queries), step):
        products = queries[start : start + step] @ bank.T
        if depth > 6:
            grid = products[:, : depth * width].reshape(-1, depth, width)
            columns = np.argpartition(grid.max(axis=1), width - k, axis=1)[:, width - k :]
            places = np.arange(0, depth * width, width)[:, None] + columns[:, None]
            places += (size * np.arange(len(products)))[:, None, None]
            candidates = products.ravel().take(places.reshape(len(products), -1))
            products = np.concatenate([candidates, products[:, depth * width :]], axis=1)
        last = products.shape[1] - k
        out[start : start + step] = np.partition(products, last, axis=1)[:, last:] if last else products
    return out


class Bank(Detector):
    """A detector that keeps fit samples: all of them, or a seeded sample balanced over classes."""

    passes = 2
    size: int | None
    seed: int
    bank_: FloatArray  # [N, D]
    bank_classes: IntArray  # [N], known until fit returns

    def _check(self) -> None:
        self._number("seed", 0, 1 << 63, whole=True)
        if self.size is not None:
            self._number("size", 1, 1 << 31, whole=True)

    def _entries(self, rows: Rows) -> FloatArray:
        """The part of some rows that the bank keeps."""
        return unit(rows.features)

    def _kept(self, rows: Rows) -> Any:
        """Which rows may enter the bank."""
        return slice(None)

    def _size(self, total: int) -> int | None:
        """Number of fit samples, of ``total``, that the bank keeps; None means all."""
        return self.size

    def _fit(self, data: FitData) -> None:
        counts = np.zeros((), dtype=np.int64)
        for rows in data:
            counts = counts + np.bincount(rows.classes[self._kept(rows)], minlength=data.columns)
        size = self._size(int(counts.sum()))
        if size is None or size >= counts.sum():
            blocks = [(self._entries(rows)[self._kept(rows)], rows.classes[self._kept(rows)]) for rows in data]
            self.bank_, self.bank_classes = (np.concatenate(part) for part in zip(*blocks, strict=True))
            return
        sample = Sample(quotas(counts, size), self.seed)
        for rows in data:
            kept = self._kept(rows)
            sample.add(rows.features[kept], rows.classes[kept], self._entries(rows)[kept])
        self.bank_, self.bank_classes = sample.rows, sample.classes


class Searched(NamedTuple):
    """A bank, ready for search."""

    bank: FloatArray  # [N, D]
    k: int
    approximate: Index | None


class _Neighbours(Bank):
    """A bank that is searched for the k rows with the largest inner products."""

    block = 1 << 21
    k: int
    probe: float
    fewest_: int = 1 << 62  # samples of the smallest class in the bank

    def _check(self) -> None:
        super()._check()
        self._number("k", 1, 1 << 31, whole=True)
        self._number("probe", 1e-6, 1)

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
        return Searched(self.bank_.astype(dtype, copy=False), min(self.k, len(self.bank_)), index)

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
    grid: ClassVar[Grid] = {"k": (50, 100, 200, 500, 1000)}
    refit = frozenset({"size", "seed", "probe"})

    def __init__(self, k: int = 50, size: int | None = None, seed: int = 0, probe: float = 1.0) -> None:
        self.k = k
        self.size = size
        self.seed = seed
        self.probe = probe

    def _prepare(self, dtype: np.dtype[Any]) -> Searched:
        if self.fewest_ < self.k <= len(self.bank_):
            self._warn(
                f"k = {self.k} exceeds the {self.fewest_} samples of the smallest class, whose k-th neighbour is then "
                "in another class; use a smaller k"
            )
        return super()._prepare(dtype)

    def _score(self, rows: Rows, prepared: Searched) -> FloatArray:
        cosine: FloatArray = self._top(rows, prepared).min(axis=1)
        return np.minimum(2 * cosine - 2, 0)  # rounding could make it positive


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
    grid: ClassVar[Grid] = {"k": (100,), "alpha": (0.01,)}
    refit = frozenset({"k", "alpha", "seed", "probe"})
    size = None

    def __init__(self, k: int = 100, alpha: float = 0.01, seed: int = 0, probe: float = 1.0) -> None:
        self.k = k
        self.alpha = alpha
        self.seed = seed
        self.probe = probe

    def _check(self) -> None:
        super()._check()
        self._number("alpha", 0, 1)

    def _size(self, total: int) -> int | None:
        return min(total, max(self.k, int(np.ceil(self.alpha * total))))

    def _entries(self, rows: Rows) -> FloatArray:
        return unit(rows.features) * logsumexp(rows.logits)[:, None]

    def _score(self, rows: Rows, prepared: Searched) -> FloatArray:
        guidance = self._top(rows, prepared).mean(axis=1)
        result: FloatArray = guidance * logsumexp(rows.logits)
        return result

"""Approximate nearest neighbours: an inverted file index. Rows are in lists; a query searches the most promising."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from tood.arrays import FloatArray, IntArray

ROWS = 128  # of a list, on average; at most half as many again
TRAINING = 40  # rows per list that place the centres
ROUNDS = 5  # of k-means
REACH = 0.2  # share of a list's radius: about three deviations of its products with a query, on image features
PRODUCTS = 1 << 22  # products held at once: 16 MiB of float32, which the allocator reuses


def group(rows: FloatArray) -> tuple[IntArray, IntArray]:
    """Group rows ``[N, D]``, which are in random order, by k-means: new order ``[N]`` and the lists' ends ``[L]``."""
    count = max(1, len(rows) // ROWS)
    centres = rows[:count].copy()
    training = rows[: TRAINING * count]
    for _ in range(ROUNDS):
        order, ends = _by_list(_nearest(training, centres), count)
        placed = training[order]
        for j, (start, end) in enumerate(zip([0, *ends[:-1]], ends, strict=True)):
            if end > start:
                centres[j] = placed[start:end].mean(axis=0)
    order, ends = _by_list(_nearest(rows, centres), count)
    cuts: list[int] = []
    for start, end in zip([0, *ends[:-1]], ends, strict=True):
        pieces = -(-2 * (end - start) // (3 * ROWS))
        if pieces > 1:  # a long list is cut across its longest axis
            part = rows[order[start:end]]
            order[start:end] = order[start:end][np.argsort(part @ _axis(part), kind="stable")]
        cuts += (start + (end - start) * np.arange(1, pieces + 1) // max(pieces, 1)).tolist()
    return order, np.array(cuts)


def _by_list(lists: IntArray, count: int) -> tuple[IntArray, list[int]]:
    return np.argsort(lists, kind="stable"), np.cumsum(np.bincount(lists, minlength=count)).tolist()


def _nearest(rows: FloatArray, centres: FloatArray) -> IntArray:
    half = np.einsum("kd,kd->k", centres, centres) / 2
    step = max(1, PRODUCTS // len(centres))
    blocks = [(rows[s : s + step] @ centres.T - half).argmax(axis=1) for s in range(0, len(rows), step)]
    return np.concatenate(blocks)


def _axis(rows: FloatArray) -> FloatArray:
    """``[D]``: roughly the direction along which rows differ most."""
    centred = rows - rows.mean(axis=0)
    axis: FloatArray = centred[np.einsum("nd,nd->n", centred, centred).argmax()]
    for _ in range(3):
        axis = (centred @ axis) @ centred
        axis = axis / (np.linalg.norm(axis) or 1)
    return axis


class Lists(NamedTuple):
    """A bank in lists, ready for search."""

    rows: FloatArray  # [N, D], list after list
    starts: IntArray  # [L]
    sizes: IntArray  # [L]
    centres: FloatArray  # [L, D]
    reach: FloatArray  # [L], how far above its centre's product a list's best rows may lie

    @classmethod
    def of(cls, rows: FloatArray, ends: IntArray) -> Lists:
        """From rows in the order of :func:`group`, and the ends of the lists."""
        starts = np.concatenate([[0], ends[:-1]])
        sizes = ends - starts
        centres = np.add.reduceat(rows, starts, axis=0) / sizes[:, None].astype(rows.dtype)
        squares = np.add.reduceat(np.einsum("nd,nd->n", rows, rows), starts) / sizes
        radius = np.sqrt(np.maximum(squares - np.einsum("kd,kd->k", centres, centres), 0))
        return cls(rows, starts, sizes, centres, (REACH * radius).astype(rows.dtype))

    def top_products(self, queries: FloatArray, k: int, share: float) -> FloatArray:
        """``[n, k]``, unordered: the k largest inner products with the rows of that share of the lists.

        Each is exact; a row in a list that is not searched can be missed, so the k-th largest may be too low.
        """
        count = len(self.starts)
        enough = int(np.searchsorted(np.cumsum(np.sort(self.sizes)), k)) + 1  # any so many lists have k rows
        probes = min(count, max(enough, int(np.ceil(share * count))))
        step = max(1, PRODUCTS // int(probes * self.sizes.max()))
        parts = [self._top(queries[s : s + step], k, probes) for s in range(0, len(queries), step)]
        return np.concatenate(parts) if parts else np.empty((0, k), dtype=queries.dtype)

    def _top(self, queries: FloatArray, k: int, probes: int) -> FloatArray:
        promise = queries @ self.centres.T + self.reach
        last = len(self.starts) - probes
        chosen = np.argpartition(promise, min(last, len(self.starts) - 1), axis=1)[:, last:]
        small = np.uint16 if len(self.starts) < 1 << 16 else np.int64  # 16 bits are sorted in one pass
        chosen = chosen.ravel().astype(small)
        order = np.argsort(chosen, kind="stable")  # queries that search the same list share one product of matrices
        ends = np.cumsum(np.bincount(chosen, minlength=len(self.starts)))
        products = np.empty((len(order), int(self.sizes.max())), dtype=queries.dtype)
        start = 0
        for row, size, end in zip(self.starts.tolist(), self.sizes.tolist(), ends.tolist(), strict=True):
            if end > start:
                places = order[start:end]
                products[places, :size] = queries[places // probes] @ self.rows[row : row + size].T
                products[places, size:] = -np.inf
            start = end
        products = products.reshape(len(queries), -1)
        products.partition(products.shape[1] - k, axis=1)
        return products[:, products.shape[1] - k :]

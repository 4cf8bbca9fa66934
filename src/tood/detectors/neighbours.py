"""Approximate nearest neighbours in a large bank, with faiss."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from tood.arrays import FloatArray
from tood.errors import MissingDependencyError

LEAST = 10_000  # a smaller bank is searched whole: one product of matrices is as fast
TRAINING = 25_000  # rows that place the lists and the quantisers
QUANTISERS = 64  # of four bits each, at least, if there are so many dimensions; one for four dimensions at most
CANDIDATES = 2  # per neighbour; their products are computed exactly


class Index:
    """Inverted lists of quantised rows: a query searches the nearest lists and computes exact products of the best.

    Parameters
    ----------
    bank:
        ``[N, D]``, in random order.
    probe:
        Share of the lists that a query searches.
    """

    def __init__(self, bank: FloatArray, probe: float) -> None:
        faiss = _faiss()
        rows = _padded(bank)
        lists, width = int(np.sqrt(len(rows))), rows.shape[1]
        text = f"IVF{lists},PQ{width // _each(width)}x4fs,RFlat"
        self._index = faiss.index_factory(width, text, faiss.METRIC_INNER_PRODUCT)
        self._index.train(rows[:TRAINING])
        self._index.add(rows)
        self._index.k_factor = CANDIDATES
        faiss.downcast_index(self._index.base_index).nprobe = int(np.ceil(probe * lists))

    def top_products(self, queries: FloatArray, k: int) -> tuple[FloatArray, npt.NDArray[np.bool_]]:
        """``[n, k]``: the largest inner products found; ``[n]``: whether the lists held fewer than k rows."""
        products, rows = self._index.search(_padded(queries), k)
        return products.astype(queries.dtype, copy=False), (rows < 0).any(axis=1)


def _faiss() -> Any:  # its stubs know only the base class of an index
    try:
        import faiss
    except ImportError as error:
        raise MissingDependencyError("faiss-cpu", "faiss", "probe below 1 in a large bank") from error
    return faiss


def _each(dimensions: int) -> int:
    """Number of dimensions per quantiser."""
    return min(4, max(1, dimensions // QUANTISERS))


def _padded(x: FloatArray) -> FloatArray:
    """``x`` in float32 with columns of zeros at the end, so that quantisers share the dimensions evenly."""
    each = _each(x.shape[1])
    wide = np.zeros((len(x), -(-x.shape[1] // each) * each), dtype=np.float32)
    wide[:, : x.shape[1]] = x
    return wide

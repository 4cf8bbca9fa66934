"""Sources: labelled samples that are read by row, in memory or from another source."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from tood.arrays import IntArray, indices, is_tensor, to_numpy
from tood.errors import ToodError

__all__ = ["ArraySource", "Samples", "Source", "Subset", "batches", "measure", "user_cache"]

BLOCK = 256  # images whose pixels are counted at once
CHANNELS = (1, 2, 3, 4)  # numbers of channels; a larger axis is height or width
Samples = npt.NDArray[Any]  # uint8 [k, H, W, C] for images, float32 [k, D] for vectors


class Source(Protocol):
    """Labelled samples that are read by row."""

    @property
    def labels(self) -> IntArray:
        """The class id of every sample, ``[N]``; for an OOD set they are not used."""

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one sample: ``(H, W, C)`` for uint8 images, ``(D,)`` for float32 vectors."""

    def __len__(self) -> int: ...

    def take(self, rows: IntArray) -> Samples:
        """The samples of these rows, in this order: uint8 ``[k, H, W, C]`` or float32 ``[k, D]``."""


class Labelled:
    """Base of the sources here: as long as its labels."""

    labels: IntArray

    def __len__(self) -> int:
        return len(self.labels)


class ArraySource(Labelled):
    """Samples in memory. Images are kept as they are given, without a copy.

    Parameters
    ----------
    samples:
        uint8 images ``[N, H, W, C]`` or ``[N, H, W]``, or real vectors ``[N, D]``.
    labels:
        Whole numbers ``[N]``; all 0 when left out, as for an OOD set.
    classes:
        Names by label, if they are known.

    Examples
    --------
    >>> source = ArraySource(np.zeros((3, 8, 8, 1), np.uint8), [0, 1, 1])
    >>> len(source), source.shape, source.take(np.array([2])).shape
    (3, (8, 8, 1), (1, 8, 8, 1))
    """

    def __init__(self, samples: Any, labels: Any = None, classes: Sequence[str] = ()) -> None:
        array = np.asarray(to_numpy(samples) if is_tensor(samples) else samples)
        if array.dtype == np.uint8 and array.ndim in (3, 4):
            array = array if array.ndim == 4 else array[..., None]
            if array.shape[1] in CHANNELS and array.shape[3] not in CHANNELS:  # it would be C pixels high
                raise ToodError(
                    f"samples: expected uint8 images [N, H, W, C], found shape {array.shape}, which has its channels "
                    "first; give array.transpose(0, 2, 3, 1)"
                )
        elif array.dtype.kind == "f" and array.ndim == 2:
            array = array.astype(np.float32, copy=False)
            if not np.isfinite(array).all():
                raise ToodError("samples: found NaN or infinite values")
        else:
            raise ToodError(
                "samples: expected uint8 images [N, H, W, C] or real vectors [N, D], "
                f"found shape {array.shape}, dtype {array.dtype}"
            )
        if 0 in array.shape:
            raise ToodError(f"samples: expected at least one sample, found shape {array.shape}")
        self.samples: Samples = array
        self.labels = np.zeros(len(array), np.int64) if labels is None else indices(labels, "labels", len(array))
        self.classes = tuple(classes)
        self.shape: tuple[int, ...] = array.shape[1:]

    def take(self, rows: IntArray) -> Samples:
        """The samples of these rows."""
        return self.samples[rows]


class Subset(Labelled):
    """Some rows of another source, without a copy.

    Parameters
    ----------
    source:
        The other source.
    rows:
        Its rows to keep, ``[n]``.
    """

    def __init__(self, source: Source, rows: IntArray) -> None:
        self.source = source
        self.rows = indices(rows, "rows")
        self.labels: IntArray = source.labels[self.rows]
        self.shape = source.shape
        self.lazy: bool = getattr(source, "lazy", False)

    def take(self, rows: IntArray) -> Samples:
        """The samples of these rows of the subset."""
        return self.source.take(self.rows[rows])


def batches(source: Source, chunks: Iterable[IntArray], ahead: int = 2) -> Iterator[Samples]:
    """The samples of each chunk of rows; lazy sources decode the next batches while the last one is in use.

    Parameters
    ----------
    source:
        The source; one with a true ``lazy`` is read by a thread of its own.
    chunks:
        The rows of each batch.
    ahead:
        The largest number of decoded batches that wait.
    """
    if not getattr(source, "lazy", False):
        yield from map(source.take, chunks)
        return
    with ThreadPoolExecutor(1) as reader:
        waiting: deque[Future[Samples]] = deque()
        for chunk in chunks:
            waiting.append(reader.submit(source.take, chunk))
            if len(waiting) > ahead:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()


def user_cache(root: str | Path | None = None) -> Path:
    """The folder of files that can be rebuilt: ``root``, or ``TOOD_CACHE``, or ``tood`` in the user's cache folder."""
    chosen = root or os.environ.get("TOOD_CACHE")
    return Path(chosen) if chosen else Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tood"


def measure(source: Source, count: int = 5000) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation per channel of pixels in [0, 1], over at most ``count`` evenly spaced images."""
    if len(source.shape) == 1:
        return (0.0,), (1.0,)
    rows = np.unique(np.linspace(0, len(source) - 1, min(count, len(source))).astype(np.int64))
    # Pixels have 256 possible values: counting them is exact and needs no float copy of the images.
    counts = np.zeros((source.shape[-1], 256), np.int64)
    for images in batches(source, np.split(rows, range(BLOCK, len(rows), BLOCK))):
        pixels = images.reshape(-1, source.shape[-1])
        counts += np.stack([np.bincount(channel, minlength=256) for channel in pixels.T])
    values, total = np.arange(256) / 255, counts[0].sum()
    mean = counts @ values / total
    std = np.sqrt(np.maximum(counts @ values**2 / total - mean**2, 1e-12))
    return tuple(mean.tolist()), tuple(std.tolist())

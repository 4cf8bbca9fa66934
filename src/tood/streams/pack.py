"""Writing packed image sets, without loss, from any source of images."""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock

from tood.errors import ToodError
from tood.storage.files import sha256, write_text
from tood.storage.npz import write_npz
from tood.streams.images import Pixels
from tood.streams.packed import CHECKSUMS, checksums
from tood.streams.sources import Source

__all__ = ["write_packed"]

SHEET = 512  # images per sheet at most
PIXELS = 4_000_000  # pixels per sheet at most: well below the dimensions WebP allows


def write_packed(root: Path, name: str, source: Source, classes: Sequence[str]) -> Path:
    """Write ``ROOT/NAME.npz`` in the sheets layout, lossless WebP, and its checksum to ``SHA256SUMS``.

    Parameters
    ----------
    root:
        The folder of the packed sets; created if it is missing.
    name:
        The set and split, such as ``cifar10-train``.
    source:
        RGB images.
    classes:
        Names by label.
    """
    if len(source.shape) != 3 or source.shape[2] != 3:
        raise ToodError(f"{name}: expected images [H, W, 3], found samples of shape {source.shape}")
    height, width, _ = source.shape
    side = max(1, math.isqrt(min(SHEET, PIXELS // (height * width))))
    count = side * side  # so that only the last sheet can have empty tiles
    sheets = [
        _encode(source.take(np.arange(start, min(start + count, len(source)))), side)
        for start in range(0, len(source), count)
    ]
    arrays: dict[str, Any] = {
        "labels": source.labels.astype(np.int32),
        "classes": np.array(classes),
        "sheets": np.frombuffer(b"".join(sheets), np.uint8),
        "offsets": np.cumsum([0, *map(len, sheets)]),
        "tile": np.array([height, width], np.int16),
    }
    path = root / f"{name}.npz"
    write_npz(path, arrays)
    _record(path)
    return path


def _record(path: Path) -> None:
    """Write the checksum of a set to ``SHA256SUMS``; processes that do so at the same time wait for each other."""
    target = path.with_name(CHECKSUMS)
    try:
        with FileLock(path.with_name(f".{CHECKSUMS}.lock")):
            digests = {**checksums(path.parent), path.name: sha256(path)}
            text = "".join(f"{digest}  {file}\n" for file, digest in sorted(digests.items()))
            write_text(target, text)
    except OSError as error:
        raise ToodError(f"{target}: cannot be written ({error.strerror or error})") from error


def _encode(images: Pixels, side: int) -> bytes:
    """One sheet: the images as a grid of at most ``side`` columns, row by row, the rest black."""
    from PIL import Image

    k, height, width, _ = images.shape
    columns = min(k, side)
    rows = math.ceil(k / columns)
    grid = np.zeros((rows * columns, height, width, 3), np.uint8)
    grid[:k] = images
    sheet = grid.reshape(rows, columns, height, width, 3).swapaxes(1, 2).reshape(rows * height, columns * width, 3)
    buffer = io.BytesIO()
    Image.fromarray(sheet).save(buffer, "WEBP", lossless=True, exact=True, quality=50)
    return buffer.getvalue()

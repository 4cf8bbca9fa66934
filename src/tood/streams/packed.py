"""Packed image sets: ``NAME-SPLIT.npz`` files of encoded images, decoded once and verified against SHA256SUMS.

Each holds ``labels`` [N], ``classes`` [C] and the images in one of three layouts:

- *sheets*: ``sheets`` (bytes of encoded images laid end to end), ``offsets`` [S + 1] and ``tile`` [h, w]; each sheet is
  a grid of tiles read row by row, and tiles past N are padding;
- *jpeg*: ``jpeg`` (bytes of encoded images laid end to end) and ``offsets`` [N + 1], one image each;
- *images*: ``images`` uint8 [N, H, W, C].
"""

from __future__ import annotations

import io
import math
import zipfile
from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock

from tood.arrays import IntArray
from tood.errors import ToodError
from tood.storage.files import reading, sha256, write_text
from tood.storage.npz import npy_header, npz_member, npz_names, write_npz
from tood.streams.images import Pixels, Resize, check_size, decode, fit, pixels
from tood.streams.sources import Labelled, Samples, Source

__all__ = ["CHECKSUMS", "PackedSource", "checksums", "write_packed"]

CHECKSUMS = "SHA256SUMS"
LAYOUTS = ("sheets", "jpeg", "images")
SHEET = 512  # images per sheet at most
PIXELS = 4_000_000  # pixels per sheet at most: well below the dimensions WebP allows
DAMAGED = "damaged or not a packed set"


class PackedSource(Labelled):
    """One packed set. Opening it reads the labels; the images are verified and decoded on first use.

    Parameters
    ----------
    path:
        The ``NAME-SPLIT.npz`` file.
    size, resize:
        Pixels per side, and how images of another size are resized (see :func:`tood.streams.images.fit`). A resize in
        pixels applies to all images.
    """

    def __init__(self, path: str | Path, size: int | None = None, resize: Resize = None) -> None:
        if size is not None or resize is not None:
            check_size(size, resize)
        self.path = Path(path)
        with reading(self.path, DAMAGED):
            self.labels: IntArray = npz_member(self.path, "labels").astype(np.int64)
            self.classes: tuple[str, ...] = tuple(map(str, npz_member(self.path, "classes")))
            self.layout = next((layout for layout in LAYOUTS if layout in npz_names(self.path)), "")
            if not self.layout:
                raise ToodError(f"{self.path}: expected one of the arrays {', '.join(LAYOUTS)}, found none")
            native = _native_shape(self.path, self.layout)
        if self.labels.ndim != 1 or not len(self.labels):
            raise ToodError(f"{self.path}: expected one label per image, found shape {self.labels.shape}")
        if self.labels.min() < 0 or self.labels.max() >= len(self.classes):
            raise ToodError(
                f"{self.path}: labels run from {self.labels.min()} to {self.labels.max()}, "
                f"expected 0 to {len(self.classes) - 1} for its {len(self.classes)} classes"
            )
        self.size = size
        self.resize = resize
        self.shape: tuple[int, ...] = native if size is None else (size, size, native[2])

    def take(self, rows: IntArray) -> Samples:
        """The images of these rows, uint8 ``[k, H, W, C]``."""
        return self.images[rows]

    def content(self) -> str:
        """A fingerprint of the images without decoding them: the file's SHA-256 and the size."""
        return f"{sha256(self.path)} {self.size}" + (f" {self.resize}" if self.resize else "")

    @cached_property
    def images(self) -> Samples:
        """All images, uint8 ``[N, H, W, C]``, read-only; verified with the checksum in the same folder, if any."""
        expected = checksums(self.path.parent).get(self.path.name)
        if expected is not None and sha256(self.path) != expected:
            raise ToodError(f"{self.path}: damaged: its SHA-256 is not that of {CHECKSUMS}; get the file again")
        return self._decode()

    def _decode(self) -> Samples:
        shape = (len(self), *self.shape)
        images: Samples = np.empty(shape, np.uint8)
        filled = 0
        with reading(self.path, DAMAGED):
            for block in _blocks(self.path, self.layout):
                block = block[: len(self) - filled]
                if block.shape[1:] != self.shape or self.resize not in (None, "squash"):
                    block = self._fit(block)
                if block.shape == shape:
                    images = block  # all of them at once: no second copy
                else:
                    images[filled : filled + len(block)] = block
                filled += len(block)
        if filled < len(self):
            raise ToodError(f"{self.path}: damaged: {filled} images for {len(self)} labels")
        images.flags.writeable = False
        return images

    def _fit(self, block: Pixels) -> Pixels:
        from PIL import Image

        if self.size is None:
            raise ToodError(f"{self.path}: images of {self.shape} and of {block.shape[1:]}; give a size")
        shape = (self.size, self.size, self.shape[2])
        resized = [pixels(fit(Image.fromarray(np.squeeze(image)), self.size, self.resize)) for image in block]
        return np.stack(resized).reshape(len(block), *shape)


def _native_shape(path: Path, layout: str) -> tuple[int, int, int]:
    """The shape of one image, without decoding more than one."""
    if layout == "images":
        with zipfile.ZipFile(path) as pack, pack.open("images.npy") as file:
            shape, _, dtype = npy_header(file)
        if len(shape) != 4 or dtype != np.uint8:
            raise ToodError(f"{path}: expected uint8 images [N, H, W, C], found shape {shape}, dtype {dtype}")
        return shape[1], shape[2], shape[3]
    height, width = npz_member(path, "tile") if layout == "sheets" else next(_blocks(path, layout)).shape[1:3]
    return int(height), int(width), 3


def _blocks(path: Path, layout: str) -> Iterator[Pixels]:
    """The images in order, in blocks ``[k, H, W, C]``."""
    if layout == "images":
        yield npz_member(path, "images")
        return
    data, offsets = npz_member(path, layout), npz_member(path, "offsets")
    if len(offsets) < 2 or offsets[0] < 0 or (np.diff(offsets) <= 0).any() or offsets[-1] > len(data):
        raise ToodError(f"{path}: damaged: offsets are not within the {len(data)} bytes of {layout}")
    height, width = map(int, npz_member(path, "tile")) if layout == "sheets" else (0, 0)
    for i, (start, end) in enumerate(pairwise(offsets)):
        image = pixels(decode(io.BytesIO(data[start:end].tobytes()), f"{path}, image {i} of {layout}"))
        yield _tiles(image, height, width) if layout == "sheets" else image[None]


def _tiles(sheet: Pixels, height: int, width: int) -> Pixels:
    """The tiles of a grid, row by row, ``[k, height, width, 3]``."""
    rows, columns = sheet.shape[0] // height, sheet.shape[1] // width
    return sheet.reshape(rows, height, columns, width, 3).swapaxes(1, 2).reshape(-1, height, width, 3)


def checksums(root: Path) -> dict[str, str]:
    """The SHA-256 of each file that ``SHA256SUMS`` in this folder lists; empty without such a file."""
    path = root / CHECKSUMS
    if not path.is_file():
        return {}
    expected = "expected lines of a SHA-256 and a file name"
    with reading(path, expected):
        lines = [line.split(maxsplit=1) for line in path.read_text("utf-8").splitlines() if line.strip()]
    if any(len(line) != 2 or len(line[0]) != 64 for line in lines):
        raise ToodError(f"{path}: {expected}")
    return {name.lstrip("*"): digest.lower() for digest, name in lines}


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

"""Packed image sets: ``NAME-SPLIT.npz`` files of encoded images, decoded once and compared with SHA256SUMS.

Each holds ``labels`` [N], ``classes`` [C] and the images in one of three layouts:

- *sheets*: ``sheets`` (bytes of encoded images laid end to end), ``offsets`` [S + 1] and ``tile`` [h, w]; each sheet is
  a grid of tiles read row by row, and tiles past N are padding;
- *jpeg*: ``jpeg`` (bytes of encoded images laid end to end) and ``offsets`` [N + 1], one image each;
- *images*: ``images`` uint8 [N, H, W, 3].
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from functools import cached_property
from itertools import pairwise
from pathlib import Path

import numpy as np

from tood.arrays import IntArray
from tood.errors import ToodError
from tood.storage.files import reading, sha256
from tood.storage.npz import npz_member, npz_names
from tood.streams.images import Pixels, Resize, check_size, decode, fit_all, pixels
from tood.streams.sources import Labelled, Samples

__all__ = ["CHECKSUMS", "PackedSource", "checksums"]

CHECKSUMS = "SHA256SUMS"
LAYOUTS = ("sheets", "jpeg", "images")
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
        self.path, self.size, self.resize = Path(path), size, resize
        with reading(self.path, DAMAGED):
            self.labels: IntArray = npz_member(self.path, "labels").astype(np.int64)
            self.classes: tuple[str, ...] = tuple(map(str, npz_member(self.path, "classes")))
            self.layout = next((layout for layout in LAYOUTS if layout in npz_names(self.path)), "")
        if not self.layout:
            raise ToodError(f"{self.path}: expected one of the arrays {', '.join(LAYOUTS)}, found none")
        if self.labels.ndim != 1 or not len(self.labels):
            raise ToodError(f"{self.path}: expected one label per image, found shape {self.labels.shape}")
        if self.labels.min() < 0 or self.labels.max() >= len(self.classes):
            raise ToodError(
                f"{self.path}: labels run from {self.labels.min()} to {self.labels.max()}, "
                f"expected 0 to {len(self.classes) - 1} for its {len(self.classes)} classes"
            )

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one image; without a size, this decodes the images."""
        return self.images.shape[1:] if self.size is None else (self.size, self.size, 3)

    def take(self, rows: IntArray) -> Samples:
        """The images of these rows, uint8 ``[k, H, W, 3]``."""
        return self.images[rows]

    def content(self) -> str:
        """A fingerprint of the images without decoding them: the file's SHA-256 and the size."""
        return f"{sha256(self.path)} {self.size}" + (f" {self.resize}" if self.resize else "")

    @cached_property
    def images(self) -> Pixels:
        """All images, uint8 ``[N, H, W, 3]``, read-only; compared with the checksum in the same folder, if any."""
        expected = checksums(self.path.parent).get(self.path.name)
        if expected is not None and sha256(self.path) != expected:
            raise ToodError(f"{self.path}: damaged: its SHA-256 is not that of {CHECKSUMS}; get the file again")
        with reading(self.path, DAMAGED):
            blocks = [fit_all(block, self.size, self.resize) for block in _blocks(self.path, self.layout)]
            images = blocks[0] if len(blocks) == 1 else np.concatenate(blocks)
        if len(images) < len(self):
            raise ToodError(f"{self.path}: damaged: {len(images)} images for {len(self)} labels")
        images.flags.writeable = False
        return images[: len(self)]


def _blocks(path: Path, layout: str) -> Iterator[Pixels]:
    """The images in order, in blocks ``[k, H, W, 3]``."""
    data = npz_member(path, layout)
    if layout == "images":
        if data.ndim != 4 or data.shape[3] != 3 or data.dtype != np.uint8:
            raise ToodError(f"{path}: expected uint8 images [N, H, W, 3], found shape {data.shape}, dtype {data.dtype}")
        yield data
        return
    offsets = npz_member(path, "offsets")
    if len(offsets) < 2 or offsets[0] < 0 or (np.diff(offsets) <= 0).any() or offsets[-1] > len(data):
        raise ToodError(f"{path}: damaged: offsets are not within the {len(data)} bytes of {layout}")
    tile = tuple(map(int, npz_member(path, "tile"))) if layout == "sheets" else None
    for i, (start, end) in enumerate(pairwise(offsets)):
        image = pixels(decode(io.BytesIO(data[start:end].tobytes()), f"{path}, image {i} of {layout}"))
        yield _tiles(image, *(tile or image.shape[:2]))


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

"""Image files: decoded, resized as OpenOOD does, and read per batch from class folders or OpenOOD's lists."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path, PurePosixPath
from typing import IO, TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from tood.arrays import IntArray
from tood.errors import MissingDependencyError, ToodError
from tood.storage.files import sha256, write_text
from tood.streams.sources import Labelled, Samples, user_cache

if TYPE_CHECKING:
    from PIL.Image import Image

__all__ = ["FolderSource", "ImageListSource", "Resize", "check_size", "decode", "fit", "fit_all", "pixels"]

Pixels = npt.NDArray[np.uint8]
Resize: TypeAlias = 'int | Literal["squash"] | None'
THREADS = min(16, os.cpu_count() or 1)
SUFFIXES = (".bmp", ".gif", ".jpeg", ".jpg", ".png", ".ppm", ".tif", ".tiff", ".webp")


def decode(file: IO[bytes] | str, name: str) -> Image:
    """The image in a file or at a path, fully read, in RGB; a damaged one is an error that names ``name``."""
    try:
        from PIL import Image, UnidentifiedImageError
    except ImportError as error:
        raise MissingDependencyError("pillow", "train", "reading images") from error
    try:
        with Image.open(file) as image:
            return image.convert("RGB")
    except FileNotFoundError as error:
        raise ToodError(f"{name}: no such file") from error
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        reason = "not an image" if isinstance(error, UnidentifiedImageError) else error
        raise ToodError(f"{name}: damaged ({reason})") from error


def fit(image: Image, size: int, resize: Resize = None) -> Image:
    """The image at ``size`` by ``size`` pixels: cropped, or squashed.

    By default the shorter side is scaled to ``resize`` pixels (``size`` if None), bilinear, and the centre is cropped.
    This is OpenOOD's test transform, with 32 and 32 for CIFAR and 256 and 224 for ImageNet; it rounds as torchvision's
    ``Resize`` and ``CenterCrop`` do. With ``"squash"`` both sides are scaled to ``size``, whatever the proportions.
    """
    from PIL import Image

    if resize == "squash":
        return image.resize((size, size), Image.Resampling.BILINEAR)
    short, target = min(image.size), size if resize is None else resize
    width, height = (int(target * side / short) for side in image.size)
    if (width, height) != image.size:
        image = image.resize((width, height), Image.Resampling.BILINEAR)
    left, top = round((width - size) / 2), round((height - size) / 2)
    return image.crop((left, top, left + size, top + size))


def fit_all(images: Pixels, size: int | None, resize: Resize = None) -> Pixels:
    """Images ``[N, H, W, 3]`` at ``size`` by ``size`` pixels, as :func:`fit` does; unchanged without a size."""
    if size is None or (images.shape[1:3] == (size, size) and resize in (None, "squash")):
        return images
    from PIL import Image

    return np.stack([pixels(fit(Image.fromarray(image), size, resize)) for image in images])


def check_size(size: Any, resize: Any) -> int:
    """``size``; raises if it or ``resize`` is invalid."""
    whole = [isinstance(n, (int, np.integer)) and not isinstance(n, bool) for n in (size, resize)]
    if resize not in (None, "squash") and not whole[1]:
        raise ToodError(f"resize: expected 'squash' or pixels of the shorter side, found {resize!r}")
    if not whole[0] or size < 1 or (whole[1] and resize < size):
        raise ToodError(
            f"size, resize: expected a whole size of 1 or more and a resize no smaller, found {size!r} and {resize!r}"
        )
    return int(size)


def pixels(image: Any) -> Pixels:
    """uint8 ``[H, W, 3]``."""
    return np.asarray(image, dtype=np.uint8)


class _Files(Labelled):
    """Image files below one folder; a batch is decoded by several threads (Pillow releases the interpreter lock)."""

    lazy = True  # tood.streams.batches decodes the next batches in advance

    def __init__(self, root: Path, files: Sequence[str], labels: IntArray, size: int | None, resize: Resize) -> None:
        self.size, self.resize = check_size(size, resize), resize
        self.root, self.files, self.labels = root, files, labels
        self.shape: tuple[int, ...] = (self.size, self.size, 3)

    def take(self, rows: IntArray) -> Samples:
        """The images of these rows, uint8 ``[k, size, size, 3]``."""
        images = np.empty((len(rows), *self.shape), np.uint8)
        with ThreadPoolExecutor(THREADS) as pool:
            for i, image in enumerate(pool.map(self._read, rows)):
                images[i] = image
        return images

    def content(self) -> str:
        """A fingerprint of the images: names and bytes of the files, and the size.

        Files are read once: the fingerprint is kept in the cache folder under their inodes, sizes and times of change,
        which no program can set back.
        """
        paths = [os.path.join(self.root, file) for file in self.files]
        stamps = [(path, s.st_ino, s.st_size, s.st_mtime_ns, s.st_ctime_ns) for path in paths for s in [os.stat(path)]]
        kept = user_cache() / "digests" / hashlib.sha256(repr(stamps).encode()).hexdigest()
        if kept.is_file():
            digest = kept.read_text()
        else:
            with ThreadPoolExecutor(THREADS) as pool:
                lines = [f"{file} {of_file}" for file, of_file in zip(self.files, pool.map(sha256, paths), strict=True)]
            digest = hashlib.sha256("\n".join(lines).encode()).hexdigest()
            with contextlib.suppress(ToodError):  # a cache that cannot be written
                write_text(kept, digest)
        return f"{digest} {self.size} {self.resize}"

    def _read(self, row: int) -> Pixels:
        path = os.path.join(self.root, self.files[row])
        return pixels(fit(decode(path, path), self.size, self.resize))


class FolderSource(_Files):
    """Images in one folder per class: ``ROOT/CLASS/**/image.jpg``. Classes are numbered in sorted order.

    Parameters
    ----------
    root:
        The folder of the class folders.
    size:
        Pixels per side of the images that :meth:`take` returns.
    resize:
        Pixels that the shorter side is scaled to before the centre is cropped (default: ``size``), or ``"squash"`` to
        scale both sides to ``size``.
    classes:
        The class folders in order of their ids, if they must agree with another source.
    flat:
        Every image below ``root``, labelled 0, as for an OOD set.
    """

    def __init__(
        self,
        root: str | Path,
        *,
        size: int | None,
        resize: Resize = None,
        classes: Sequence[str] | None = None,
        flat: bool = False,
    ) -> None:
        root = Path(root)
        if not root.is_dir():
            raise ToodError(f"{root}: no such folder")
        folders = ["."] if flat else sorted(entry.name for entry in os.scandir(root) if entry.is_dir())
        self.classes: tuple[str, ...] = tuple(folders if classes is None else classes)
        missing = sorted(set(self.classes) - set(folders))
        if missing or not folders:
            raise ToodError(
                f"{root}: expected one folder per class, found no folder {missing[0] if missing else 'at all'}"
            )
        members = [_images_below(root, name) for name in self.classes]
        if [] in members:
            empty = root / self.classes[members.index([])]
            raise ToodError(f"{empty}: no images (looked for {', '.join(SUFFIXES)})")
        labels = np.repeat(np.arange(len(members)), [len(images) for images in members])
        super().__init__(root, [file for images in members for file in images], labels, size, resize)


def _images_below(root: Path, folder: str) -> list[str]:
    """Paths, relative to ``root``, of the images anywhere below one of its folders, sorted."""
    images = []
    for path, _, names in os.walk(root / folder):
        below = os.path.relpath(path, root)  # once per folder: there may be a million files
        images += [os.path.join(below, name) for name in names if name.lower().endswith(SUFFIXES)]
    return sorted(images)


class ImageListSource(_Files):
    """The images of an OpenOOD list: lines ``path label``, with paths relative to a folder.

    A class is named after the folder of its first image.

    Parameters
    ----------
    list_file:
        The list, such as ``benchmark_imglist/cifar10/test_cifar10.txt``.
    root:
        The folder its paths start from, such as ``images_classic``; a path that leaves it is refused.
    size, resize:
        As for :class:`FolderSource`.
    """

    def __init__(self, list_file: str | Path, root: str | Path, *, size: int | None, resize: Resize = None) -> None:
        list_file, root = Path(list_file), Path(root)
        if not list_file.is_file():
            raise ToodError(f"{list_file}: no such file")
        if not root.is_dir():
            raise ToodError(f"{root}: no such folder")
        lines = enumerate(list_file.read_text(encoding="utf-8").splitlines(), 1)
        images = [_parse(line, f"{list_file}, line {number}") for number, line in lines if line.strip()]
        if not images:
            raise ToodError(f"{list_file}: lists no images")
        named = {label: Path(path).parent.name for path, label in reversed(images)}
        self.classes: tuple[str, ...] = tuple(named.get(c, str(c)) for c in range(max(named) + 1))
        files, labels = zip(*images, strict=True)
        super().__init__(root, files, np.array(labels, np.int64), size, resize)


def _parse(line: str, where: str) -> tuple[str, int]:
    """Path and label of one line of a list; ``where`` names the line in messages."""
    path, _, label = line.strip().rpartition(" ")
    if not path or not re.fullmatch(r"-?[0-9]{1,5}", label):
        raise ToodError(f"{where}: expected a path and a label below 100000, found {line[:60]!r}")
    posix = PurePosixPath(path.replace("\\", "/"))
    if posix.is_absolute() or ".." in posix.parts or Path(path).is_absolute():
        raise ToodError(f"{where}: {path} leaves the image folder")
    return path, int(label)

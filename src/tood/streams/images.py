"""One encoded image to uint8 pixels, resized the way OpenOOD does for its benchmarks."""

from __future__ import annotations

from typing import IO, TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from tood.errors import MissingDependencyError, ToodError

if TYPE_CHECKING:
    from PIL.Image import Image

__all__ = ["decode", "fit", "pixels"]

Pixels = npt.NDArray[np.uint8]


def decode(file: IO[bytes] | str, name: str) -> Image:
    """The image in a file or its path, fully read, in RGB; a damaged one is an error that says ``name``."""
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


def fit(image: Image, size: int, resize: int | None = None) -> Image:
    """The shorter side scaled to ``resize``, bilinear, then the ``size`` pixels square in the middle.

    This is OpenOOD's test transform, with 32 and 32 for CIFAR and 256 and 224 for ImageNet; it rounds where
    torchvision's ``Resize`` and ``CenterCrop`` do. Without ``resize`` the shorter side becomes ``size``.
    """
    from PIL import Image

    short, target = min(image.size), size if resize is None else resize
    width, height = (int(target * side / short) for side in image.size)
    if (width, height) != image.size:
        image = image.resize((width, height), Image.Resampling.BILINEAR)
    left, top = round((width - size) / 2), round((height - size) / 2)
    return image.crop((left, top, left + size, top + size))


def pixels(image: Any) -> Pixels:
    """uint8 ``[H, W, 3]``."""
    return np.asarray(image, dtype=np.uint8)

"""Encoded images as uint8 pixels, resized as OpenOOD does for its benchmarks, or squashed."""

from __future__ import annotations

from typing import IO, TYPE_CHECKING, Any, Literal, TypeAlias, TypeGuard

import numpy as np
import numpy.typing as npt

from tood.errors import MissingDependencyError, ToodError

if TYPE_CHECKING:
    from PIL.Image import Image

__all__ = ["Resize", "check_size", "decode", "fit", "fit_all", "pixels"]

Pixels = npt.NDArray[np.uint8]
Resize: TypeAlias = 'int | Literal["squash"] | None'


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


def check_size(size: int | None, resize: Resize) -> None:
    """Raise a ToodError for an invalid ``size`` or ``resize``."""
    if resize not in (None, "squash") and not _is_whole(resize):
        raise ToodError(f"resize: expected 'squash' or pixels of the shorter side, found {resize!r}")
    if not _is_whole(size) or size < 1 or (_is_whole(resize) and resize < size):
        raise ToodError(
            f"size, resize: expected a whole size of 1 or more and a resize no smaller, found {size!r} and {resize!r}"
        )


def _is_whole(number: Any) -> TypeGuard[int]:
    return isinstance(number, (int, np.integer)) and not isinstance(number, bool)


def pixels(image: Any) -> Pixels:
    """uint8 ``[H, W, 3]``."""
    return np.asarray(image, dtype=np.uint8)

"""Normalisation, random crops and flips of image batches, a whole batch at once on its own device."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn.functional import affine_grid, grid_sample

from tood.errors import ToodError

__all__ = ["augment", "crop", "prepare", "resized_crop"]

Own = Callable[[Tensor, torch.Generator], Tensor]
SMALLEST, RATIO, TRIES = 0.08, 4 / 3, 10  # of a resized crop: share of the image, width to height, draws


def prepare(
    batch: npt.NDArray[Any] | Tensor,
    mean: Sequence[float],
    std: Sequence[float],
    device: torch.device | str | None = None,
) -> Tensor:
    """Network input from samples: ``(pixel / 255 - mean) / std`` for images; vectors pass as float32.

    Parameters
    ----------
    batch:
        uint8 images ``[n, H, W, C]``, or vectors ``[n, D]``.
    mean, std:
        Mean and standard deviation per channel of pixels in [0, 1].
    device:
        The device of the result; images move there as bytes.

    Returns
    -------
    Tensor
        float32 ``[n, C, H, W]`` in channels_last memory format, or ``[n, D]``.
    """
    tensor = torch.from_numpy(batch) if isinstance(batch, np.ndarray) else batch
    tensor = tensor.to(device)
    if tensor.ndim == 2:
        return tensor.float()
    if tensor.ndim != 4 or tensor.dtype != torch.uint8:
        raise ToodError(
            f"batch: expected uint8 images [n, H, W, C] or vectors [n, D], "
            f"found shape {tuple(tensor.shape)}, dtype {tensor.dtype}"
        )
    n, height, width, channels = tensor.shape
    # Whole rows of W x C values at a time: an innermost axis of three channels would be three times slower.
    scale = torch.tensor([1 / (255 * s) for s in std]).repeat(width)
    shift = torch.tensor([-m / s for m, s in zip(mean, std, strict=True)]).repeat(width)
    scale, shift = (part.to(tensor.device, non_blocking=True) for part in (scale, shift))
    rows = torch.addcmul(shift, tensor.reshape(n, height, width * channels).float(), scale)
    return rows.view(n, height, width, channels).permute(0, 3, 1, 2)


def augment(
    batch: Tensor, kind: str | Own, generator: torch.Generator, *, black: Sequence[float] | float = 0
) -> Tensor:
    """Random crops, with or without horizontal flips; each image gets its own crop and flip.

    Parameters
    ----------
    batch:
        Images ``[n, C, H, W]``.
    kind:
        ``"crop_flip"`` (of the image padded by an eighth of its height, 4 for 32 pixels), ``"shift"`` (the same without
        flip, for digits), ``"resized_crop"`` (with flips; see :func:`resized_crop`) or ``"none"``; a function is
        called with batch and generator.
    generator:
        Source of the random offsets and flips; on any device.
    black:
        The value of the added pixels: black, one number or one per channel. A prepared batch is normalised, so its
        black is :attr:`Stream.black <tood.streams.Stream.black>`, not 0.

    Returns
    -------
    Tensor
        As ``batch``, in channels_last memory format.
    """
    if not isinstance(kind, str):
        return kind(batch, generator)
    if kind == "none":
        return batch
    if kind == "resized_crop":
        return resized_crop(batch, generator)
    n, height = len(batch), batch.shape[2]
    pad = height // 8
    offsets = torch.randint(0, 2 * pad + 1, (2, n), generator=generator, device=generator.device)
    sides = 2 if kind == "crop_flip" else 1
    flips = torch.randint(0, sides, (n,), generator=generator, device=generator.device)
    offsets, flips = (drawn.to(batch.device, non_blocking=True) for drawn in (offsets, flips.bool()))
    return crop(batch, offsets, flips, pad, black)


def crop(batch: Tensor, offsets: Tensor, flips: Tensor, pad: int, black: Sequence[float] | float) -> Tensor:
    """The window of each padded image that starts at its offset, mirrored if its entry in ``flips`` is true.

    Parameters
    ----------
    batch:
        Images ``[n, C, H, W]``.
    offsets:
        Top and left of each window in the padded image, ``[2, n]``.
    flips:
        Which windows are mirrored, bool ``[n]``.
    pad:
        Pixels added on each side before cropping.
    black:
        As for :func:`augment`.
    """
    n, channels, height, width = batch.shape
    padded = batch.new_empty(n, height + 2 * pad, width + 2 * pad, channels)
    fill = torch.as_tensor(black, dtype=batch.dtype).to(batch.device, non_blocking=True).expand(channels)
    padded.flatten(2).copy_(fill.repeat(padded.shape[2]))
    padded[:, pad : pad + height, pad : pad + width] = batch.permute(0, 2, 3, 1)
    ys = torch.arange(height, device=batch.device)
    xs = torch.arange(width, device=batch.device)
    top, left = offsets
    row = top[:, None] + ys
    column = left[:, None] + torch.where(flips[:, None], xs.flip(0), xs)
    image = torch.arange(n, device=batch.device) * padded.shape[1]
    flat = ((image[:, None] + row) * padded.shape[2])[:, :, None] + column[:, None, :]
    out = padded.view(-1, channels).index_select(0, flat.view(-1))
    return out.view(n, height, width, channels).permute(0, 3, 1, 2)


def resized_crop(batch: Tensor, generator: torch.Generator) -> Tensor:
    """A random window of each image, of 8 to 100 % of its area and 3:4 to 4:3, enlarged bilinearly; half are mirrored.

    The crop of ImageNet's training (Szegedy et al. 2015); the whole image if no window of ten fits.

    Parameters
    ----------
    batch:
        Images ``[n, C, H, W]``, floating point.
    generator:
        Source of windows and flips; on any device.
    """
    n, _, height, width = batch.shape
    draw = torch.rand((5, TRIES, n), generator=generator, device=generator.device)
    area, ratio = height * width * (SMALLEST + (1 - SMALLEST) * draw[0]), RATIO ** (2 * draw[1] - 1)
    wide, high = (area * ratio).sqrt().round(), (area / ratio).sqrt().round()
    fits = (wide <= width) & (high <= height)
    first = fits.to(torch.uint8).argmax(dim=0)[None]  # the first window that fits
    wide, high = (torch.where(fits, w, full).gather(0, first)[0] for w, full in ((wide, width), (high, height)))
    left, top = ((d[0] * (full - w + 1)).floor() for d, w, full in ((draw[2], wide, width), (draw[3], high, height)))
    theta = torch.zeros(n, 2, 3, device=generator.device)
    theta[:, 0, 0] = wide / width * torch.where(draw[4, 0] < 0.5, -1, 1)
    theta[:, 1, 1] = high / height
    theta[:, 0, 2], theta[:, 1, 2] = (2 * left + wide) / width - 1, (2 * top + high) / height - 1
    grid = affine_grid(theta.to(batch.device, batch.dtype, non_blocking=True), list(batch.shape), align_corners=False)
    out = grid_sample(batch, grid, padding_mode="border", align_corners=False)
    return out.contiguous(memory_format=torch.channels_last)

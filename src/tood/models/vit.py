"""A small vision transformer for 32-pixel images; nothing beyond torch is needed."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from tood.errors import ToodError

__all__ = ["ViT"]


class ViT(nn.Module):
    """Patches, a class token, learned positions, pre-norm layers; the features are the class token's last LayerNorm.

    Parameters
    ----------
    shape:
        Of one image, ``(H, W, C)``; both sides must be multiples of ``patch``.
    patch:
        Side of a patch in pixels.
    dim, depth, heads:
        Width, number of layers and attention heads.

    References
    ----------
    Dosovitskiy et al., "An Image is Worth 16x16 Words", ICLR 2021.
    """

    def __init__(self, shape: Sequence[int], patch: int = 4, dim: int = 192, depth: int = 6, heads: int = 3) -> None:
        super().__init__()
        if len(shape) != 3 or shape[0] % patch or shape[1] % patch:
            raise ToodError(f"shape: expected images (H, W, C) of whole {patch}-pixel patches, found {tuple(shape)}")
        if dim % heads:
            raise ToodError(f"dim: expected a multiple of {heads} heads, found {dim}")
        self.dim = dim
        self.patches = nn.Conv2d(shape[2], dim, patch, patch)
        self.token = nn.Parameter(torch.zeros(1, 1, dim))
        self.positions = nn.Parameter(torch.empty(1, 1 + (shape[0] // patch) * (shape[1] // patch), dim))
        layer = nn.TransformerEncoderLayer(dim, heads, 4 * dim, 0.0, "gelu", batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, depth, nn.LayerNorm(dim), enable_nested_tensor=False)
        nn.init.trunc_normal_(self.positions, std=0.02)
        for name, weight in self.layers.named_parameters():  # the layers begin as copies of one
            if weight.ndim == 2:
                nn.init.trunc_normal_(weight, std=0.02)
            elif name.endswith("bias"):
                nn.init.zeros_(weight)

    def forward(self, x: Tensor) -> Tensor:
        """Features ``[n, dim]`` of images ``[n, C, H, W]``."""
        tokens = self.patches(x).flatten(2).transpose(1, 2)
        tokens = torch.cat([self.token.expand(len(x), -1, -1), tokens], dim=1) + self.positions
        return self.layers(tokens)[:, 0]

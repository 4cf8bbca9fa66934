"""A small vision transformer for 32-pixel images; nothing beyond torch is needed."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from tood.errors import ToodError

__all__ = ["ViT"]


class Attention(nn.Module):
    """Multi-head self-attention."""

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(dim, 3 * dim)
        self.out = nn.Linear(dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        """``[n, tokens, dim]`` to the same."""
        q, k, v = (part.unflatten(2, (self.heads, -1)).transpose(1, 2) for part in self.qkv(x).chunk(3, dim=2))
        return self.out(functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


class Layer(nn.Module):
    """Attention and a two-layer perceptron, each behind a LayerNorm and around a shortcut."""

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.attention = nn.Sequential(nn.LayerNorm(dim), Attention(dim, heads))
        self.mlp = nn.Sequential(nn.LayerNorm(dim), nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))

    def forward(self, x: Tensor) -> Tensor:
        """``[n, tokens, dim]`` to the same."""
        x = x + self.attention(x)
        return x + self.mlp(x)


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
        self.layers = nn.Sequential(*(Layer(dim, heads) for _ in range(depth)))
        self.norm = nn.LayerNorm(dim)
        nn.init.trunc_normal_(self.positions, std=0.02)
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.trunc_normal_(module.weight, std=0.02)
                nn.init.zeros_(module.bias)

    def forward(self, x: Tensor) -> Tensor:
        """Features ``[n, dim]`` of images ``[n, C, H, W]``."""
        tokens = self.patches(x).flatten(2).transpose(1, 2)
        tokens = torch.cat([self.token.expand(len(x), -1, -1), tokens], dim=1) + self.positions
        return self.norm(self.layers(tokens)[:, 0])

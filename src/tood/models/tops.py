"""Fixed transforms on top of a backbone: what closed-form learners do to features before their linear head."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from tood.errors import UnknownNameError
from tood.models.head import GrowingHead
from tood.models.network import Network

__all__ = ["RandomProjection", "Tukey", "UnitLength", "add_top", "tukey"]


class UnitLength(nn.Module):
    """``f / ‖f‖``."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.dim = dim

    def forward(self, features: Tensor) -> Tensor:
        """``[n, D]`` to ``[n, D]``."""
        return normalize(features)


def tukey(features: Tensor, power: float) -> Tensor:
    """Tukey's ladder of powers, ``f^power``. Negative features count as 0."""
    return features.clamp_min(0).pow(power)


class Tukey(UnitLength):
    """``f^power``, scaled to length one."""

    def __init__(self, dim: int, power: float = 0.5) -> None:
        super().__init__(dim)
        self.power = power

    def forward(self, features: Tensor) -> Tensor:
        """``[n, D]`` to ``[n, D]``."""
        return normalize(tukey(features, self.power))


class RandomProjection(nn.Module):
    """``ReLU(f R)`` with a fixed Gaussian matrix R ``[D, width]``, which is drawn from the seed and never stored."""

    matrix: Tensor

    def __init__(self, inputs: int, width: int, seed: int) -> None:
        super().__init__()
        self.dim = width
        generator = torch.Generator().manual_seed(seed)
        self.register_buffer("matrix", torch.empty(inputs, width).normal_(generator=generator), persistent=False)

    def forward(self, features: Tensor) -> Tensor:
        """``[n, D]`` to ``[n, width]``."""
        return (features @ self.matrix).relu()


TOPS: dict[str, Any] = {"unit": UnitLength, "tukey": Tukey, "random": RandomProjection}


def add_top(network: Network, name: str, **options: Any) -> Network:
    """The network with a fixed transform between its backbone and a new, empty head.

    Parameters
    ----------
    network:
        Its backbone is used as it is.
    name:
        ``"unit"``, ``"tukey"`` or ``"random"``.
    options:
        Of the transform: ``power``; ``width`` and ``seed``.
    """
    if name not in TOPS:
        raise UnknownNameError("top", name, TOPS)
    top = TOPS[name](network.head.dim, **options)
    spec = None if network.spec is None else {**network.spec, "top": {"name": name, **options}}
    backbone = nn.Sequential(network.backbone, top)
    backbone.normalisation = getattr(network.backbone, "normalisation", None)  # type: ignore[assignment]
    return Network(backbone, GrowingHead(top.dim), spec)

"""The growing linear head, with BiC's per-column correction inside it."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

__all__ = ["GrowingHead"]


class GrowingHead(nn.Module):
    """Linear head that grows with each task: ``logits = scale · (features @ weightᵀ + bias) + offset``.

    ``weight`` ``[C, D]`` and ``bias`` ``[C]`` are trained; ``scale`` and ``offset`` ``[C]`` are 1 and 0 unless a
    learner corrects its logits (BiC). :meth:`effective` folds them into one linear map.

    Parameters
    ----------
    dim:
        D, the number of features.
    columns:
        The initial number of logit columns, C.

    Examples
    --------
    >>> head = GrowingHead(dim=4)
    >>> head.grow(2); head.grow(3)
    >>> head(torch.zeros(1, 4)).shape
    torch.Size([1, 5])
    """

    scale: Tensor
    offset: Tensor

    def __init__(self, dim: int, columns: int = 0) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(0, dim))
        self.bias = nn.Parameter(torch.empty(0))
        self.register_buffer("scale", torch.empty(0))
        self.register_buffer("offset", torch.empty(0))
        self.grow(columns)

    @property
    def columns(self) -> int:
        """C, the number of logit columns."""
        return len(self.bias)

    @property
    def dim(self) -> int:
        """D, the number of features."""
        return self.weight.shape[1]

    def grow(self, columns: int) -> None:
        """Add columns; existing ones keep their weights. New weights are uniform with variance 1 / D, biases 0."""
        old = self.columns
        self.resize(old + columns)
        bound = math.sqrt(3 / self.dim)
        with torch.no_grad():
            self.weight[old:] = torch.empty(columns, self.dim).uniform_(-bound, bound)  # drawn on the CPU everywhere

    def resize(self, columns: int) -> None:
        """Keep the first ``columns`` columns, or add columns of zeros."""
        kept, added = min(columns, self.columns), max(0, columns - self.columns)
        self.weight = nn.Parameter(functional.pad(self.weight.detach()[:kept], (0, 0, 0, added)))
        self.bias = nn.Parameter(functional.pad(self.bias.detach()[:kept], (0, added)))
        self.scale = functional.pad(self.scale[:kept], (0, added), value=1.0)
        self.offset = functional.pad(self.offset[:kept], (0, added))

    def correct(self, columns: slice, scale: float, offset: float) -> None:
        """Correct some columns to ``scale · logit + offset``; all others are left uncorrected."""
        self.scale.fill_(1)
        self.offset.fill_(0)
        self.scale[columns] = scale
        self.offset[columns] = offset

    @property
    def corrected(self) -> bool:
        """True if some column has a correction."""
        return bool((self.scale != 1).any() or (self.offset != 0).any())

    def effective(self) -> tuple[Tensor, Tensor]:
        """The head as one linear map: weight ``[C, D]`` and bias ``[C]`` with the correction folded in."""
        return self.weight * self.scale[:, None], self.bias * self.scale + self.offset

    def forward(self, features: Tensor) -> Tensor:
        """Logits ``[n, C]`` of features ``[n, D]``."""
        return functional.linear(features, *self.effective())

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        """Resize to the stored width first, so that a head of any size can be loaded."""
        self.resize(len(state_dict.get(f"{prefix}bias", self.bias)))
        super()._load_from_state_dict(state_dict, prefix, *rest)

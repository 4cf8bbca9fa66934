"""RanPAC: ridge regression on randomly projected features of a fixed network."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import one_hot, pad

from tood.learners.base import register
from tood.learners.closed_form import ClosedForm, ClosedFormSettings
from tood.learners.settings import Above0, AtLeast0, Count

RIDGES = tuple(10.0**power for power in range(-8, 10))


@dataclass(frozen=True)
class RanPACSettings(ClosedFormSettings):
    """Settings of RanPAC.

    Parameters
    ----------
    width:
        M, the number of random features; memory grows with its square.
    ridge:
        λ of the regression; 0 to choose it at every task, from 10⁻⁸ to 10⁹, on a fifth of the task, after fitting on
        the rest of it and on all tasks before.
    scale:
        Factor of the regression's outputs, which are around 0 and 1; above 0. It sets how sharp the softmax is and
        does not change predictions.
    """

    width: Count = 10_000
    ridge: AtLeast0 = 0.0
    scale: Above0 = 10.0


@register
class RanPAC(ClosedForm):
    """RanPAC: ridge regression on random features ``h = ReLU(f R)``, R random and fixed.

    ``G = Σ h hᵀ`` and ``C = Σ h yᵀ`` over everything seen, y one-hot; ``W = (G + λ I)⁻¹ C`` and
    ``z(x) = scale · Wᵀ h(x)``. This is the paper's method without its first-task fine-tuning.
    """

    name = "ranpac"
    title = "RanPAC"
    citation = (
        'McDonnell et al., "RanPAC: Random Projections and Pre-trained Models for Continual Learning", NeurIPS 2023.'
    )
    settings: RanPACSettings
    remembers = ("gram", "sums", "ridge")
    regulariser = "ridge"

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        width = self.network.head.dim
        self.gram = torch.zeros(width, width, dtype=torch.float64, device=self.exact_device)
        self.sums = self.gram.new_zeros(width, 0)
        self.ridge = self.gram.new_tensor([self.settings.ridge])

    @classmethod
    def top(cls, settings: Any, seed: int) -> Mapping[str, Any]:
        """The random projection."""
        return {"name": "random", "width": settings.width, "seed": seed}

    def absorb(self, features: Tensor, columns: Tensor) -> None:
        """Choose the ridge on the new task, then add the task to Gram matrix and class sums."""
        lifted = self.network.backbone[1](features.to(self.fabric.device))  # type: ignore[index]
        lifted = lifted.to(self.exact_device).double()
        targets = one_hot(columns, self.network.head.columns).double()
        self.sums = pad(self.sums, (0, targets.shape[1] - self.sums.shape[1]))
        if not self.settings.ridge:
            self.ridge = self.gram.new_tensor([self._choose(lifted, targets)])
        self.gram += lifted.T @ lifted
        self.sums += lifted.T @ targets

    def solve(self) -> tuple[Tensor, Tensor]:
        """``(G + λ I)⁻¹ C``."""
        identity = torch.eye(len(self.gram)).to(self.gram)
        weight = torch.linalg.solve(self.gram + self.ridge * identity, self.sums).T
        return self.settings.scale * weight, weight.new_zeros(len(weight))

    def _choose(self, lifted: Tensor, targets: Tensor) -> float:
        """The ridge with the least mean square error on a fifth of the task, after fitting on the rest.

        One eigendecomposition serves all ridges: ``(G + λ I)⁻¹ = Q (E + λ)⁻¹ Qᵀ``.
        """
        order = torch.from_numpy(self.random.permutation(len(lifted))).to(lifted.device)
        held, rest = order[: len(order) // 5], order[len(order) // 5 :]
        if len(held) == 0:
            return 1.0
        values, vectors = torch.linalg.eigh(self.gram + lifted[rest].T @ lifted[rest])
        left = lifted[held] @ vectors
        right = vectors.T @ (self.sums + lifted[rest].T @ targets[rest])
        errors = [
            float((left @ (right / (values.clamp_min(0) + ridge)[:, None]) - targets[held]).square().mean())
            for ridge in RIDGES
        ]
        return RIDGES[errors.index(min(errors))]

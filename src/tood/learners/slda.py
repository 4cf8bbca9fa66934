"""Streaming linear discriminant analysis on the features of a fixed network."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from tood.learners.base import register
from tood.learners.closed_form import ClassMoments, ClosedForm, ClosedFormSettings
from tood.learners.settings import From0To1


@dataclass(frozen=True)
class SLDASettings(ClosedFormSettings):
    """Settings of streaming LDA.

    Parameters
    ----------
    shrinkage:
        ε, the weight of the identity in the covariance, from 0 to 1; above 0 if features can be constant.
    """

    shrinkage: From0To1 = 1e-4


@register
class SLDA(ClosedForm):
    """Streaming linear discriminant analysis: Gaussian classes with one covariance, updated with each task.

    With the class means ``m_c`` and the covariance within classes Σ of everything seen:
    ``Λ = ((1 - ε) Σ + ε I)⁻¹`` and ``z_c(x) = m_cᵀ Λ f(x) - ½ m_cᵀ Λ m_c``, which is ``log p(f(x) | c)`` up to a
    term that all classes share. Σ is exact; the paper updates it sample by sample with the running mean.
    """

    name = "slda"
    title = "SLDA"
    citation = (
        'Hayes and Kanan, "Lifelong Machine Learning with Deep Streaming Linear Discriminant Analysis", CVPR Workshops '
        "2020."
    )
    settings: SLDASettings
    remembers = ("moments",)
    regulariser = "shrinkage"

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.moments = ClassMoments(self.network.head.dim, self.exact_device)

    def absorb(self, features: Tensor, columns: Tensor) -> None:
        """Update class means and covariance."""
        self.moments.add(features, columns)

    def solve(self) -> tuple[Tensor, Tensor]:
        """Fisher's linear discriminants."""
        covariance, epsilon = self.moments.covariance(), self.settings.shrinkage
        identity = torch.eye(len(covariance), dtype=covariance.dtype, device=covariance.device)
        return discriminant(self.moments.mean, (1 - epsilon) * covariance + epsilon * identity)


def discriminant(mean: Tensor, covariance: Tensor) -> tuple[Tensor, Tensor]:
    """Weight ``m_cᵀ Σ⁻¹`` and bias ``-½ m_cᵀ Σ⁻¹ m_c`` of Gaussian classes with a common covariance."""
    weight = torch.linalg.solve(covariance, mean.T).T
    return weight, -0.5 * (weight * mean).sum(1)

"""FeCAM: Mahalanobis distances to class means, with a common covariance, on the features of a fixed network."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.linalg import LinAlgError  # type: ignore[attr-defined]
from torch.nn.functional import normalize

from tood.errors import ToodError
from tood.learners.base import register
from tood.learners.closed_form import ClassMoments, ClosedForm, ClosedFormSettings
from tood.learners.settings import Above0, AtLeast0
from tood.learners.slda import discriminant
from tood.models.tops import Tukey

ROUNDING = 1e-12  # a variance of unit vectors that float32 rounding alone can cause


@dataclass(frozen=True)
class FeCAMSettings(ClosedFormSettings):
    """Settings of FeCAM.

    Parameters
    ----------
    power:
        λ of Tukey's transform, above 0; 1 for none.
    shrink_diagonal, shrink_rest:
        γ₁ and γ₂: the multiple of the mean variance added to every variance, and of the mean covariance added to every
        covariance; 0 or more.
    """

    power: Above0 = 0.5
    shrink_diagonal: AtLeast0 = 1.0
    shrink_rest: AtLeast0 = 1.0


@register
class FeCAM(ClosedForm):
    """FeCAM: Mahalanobis distance to class means, after Tukey's transform, shrinkage and normalisation.

    With ``g = f^λ``, scaled to length one in the distance, and the covariance Σ of g within classes:

    - shrinkage: ``Σ_s = Σ + γ₁ V₁ I + γ₂ V₂ (1 - I)``, ``V₁`` and ``V₂`` being the means of its diagonal and of
      the rest;
    - normalisation: ``Σ̂_ij = Σ_s,ij / √(Σ_s,ii Σ_s,jj)``;
    - ``d_c = (g - m_c)ᵀ Σ̂⁻¹ (g - m_c)`` and ``z_c = -½ s d_c`` without the term ``gᵀ Σ̂⁻¹ g``, which all classes share.

    The scale s is such that the mean of ``s · d_c`` over samples of class c is D, as for Gaussian classes. All classes
    share one covariance (the paper's FeCAM-1; FeCAM-N has one per class), so logits are linear and one matrix is
    stored for any number of classes.
    """

    name = "fecam"
    title = "FeCAM"
    citation = (
        'Goswami et al., "FeCAM: Exploiting the Heterogeneity of Class Distributions in Exemplar-Free Continual '
        'Learning", NeurIPS 2023.'
    )
    settings: FeCAMSettings
    remembers = ("moments", "unit")
    regulariser = "shrink_diagonal"

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.moments = ClassMoments(self.network.head.dim, self.exact_device)  # of f^λ
        self.unit = ClassMoments(self.network.head.dim, self.exact_device)  # of the same at length one

    @classmethod
    def top(cls, settings: Any, seed: int) -> Mapping[str, Any]:
        """Tukey's transform."""
        return {"name": "tukey", "power": settings.power}

    def absorb(self, features: Tensor, columns: Tensor) -> None:
        """Update class means and covariances of the transformed features."""
        transformed = Tukey(features.shape[1], self.settings.power).transform(features)
        self.moments.add(transformed, columns)
        self.unit.add(normalize(transformed), columns)

    def solve(self) -> tuple[Tensor, Tensor]:
        """The linear part of ``-½ s d_c``."""
        s = self.settings
        if self.unit.covariance().trace() < ROUNDING:
            raise ToodError("features: FeCAM compares directions; expected some that vary within a class, found none")
        matrix = correlation(shrink(self.moments.covariance(), s.shrink_diagonal, s.shrink_rest))
        mean = normalize(self.moments.mean)
        own = torch.linalg.solve(matrix, self.unit.covariance()).trace()  # mean distance of samples to their own class
        away = self.unit.mean - mean  # mean direction minus direction of the mean
        extra = (away * torch.linalg.solve(matrix, away.T).T).sum(1)
        own = own + (extra * self.unit.count).sum() / self.unit.count.sum()
        return discriminant(mean, matrix * (own / len(matrix)))


def shrink(covariance: Tensor, diagonal: float, rest: float) -> Tensor:
    """``Σ + γ₁ V₁ I + γ₂ V₂ (1 - I)``."""
    d = len(covariance)
    identity = torch.eye(d, dtype=covariance.dtype, device=covariance.device)
    v1 = covariance.trace() / d
    v2 = (covariance.sum() - covariance.trace()) / max(1, d * (d - 1))  # 0 for a single feature
    return covariance + diagonal * v1 * identity + rest * v2 * (1 - identity)


def correlation(covariance: Tensor) -> Tensor:
    """``Σ_ij / √(Σ_ii Σ_jj)``; a variance of 0 is an error, as a singular matrix is."""
    deviation = covariance.diagonal().sqrt()
    if not deviation.all():
        raise LinAlgError("a feature has a variance of 0")
    return covariance / torch.outer(deviation, deviation)

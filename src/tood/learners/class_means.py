"""Closed-form learners by class means, on the features of a fixed network: NCM, streaming LDA, FeCAM."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.linalg import LinAlgError  # type: ignore[attr-defined]
from torch.nn.functional import normalize, pad

from tood.errors import ToodError
from tood.learners.base import register
from tood.learners.closed_form import ClosedForm, ClosedFormSettings
from tood.learners.settings import Above0, AtLeast0, From0To1
from tood.models.tops import tukey

ROUNDING = 1e-12  # a variance of unit vectors that float32 rounding alone can cause


class ClassMoments:
    """Count and mean of every class, and the scatter matrix within classes; exact for any order of samples.

    Parameters
    ----------
    dim:
        D, the number of features.
    device:
        Device of the tensors, which are float64.
    scatter:
        Keep the scatter matrix ``[D, D]``, the sum of squares within classes.
    """

    def __init__(self, dim: int, device: torch.device | str = "cpu", scatter: bool = True) -> None:
        self.count = torch.zeros(0, dtype=torch.float64, device=device)
        self.mean = self.count.new_zeros(0, dim)
        self.scatter = self.count.new_zeros(*(dim, dim) if scatter else (0, 0))

    def add(self, features: Tensor, columns: Tensor) -> None:
        """Add samples ``[n, D]`` with the column of each one's class ``[n]``."""
        wider = max(0, int(columns.max()) + 1 - len(self.count))
        self.count, self.mean = pad(self.count, (0, wider)), pad(self.mean, (0, 0, 0, wider))
        for c in torch.unique(columns):
            x = features[columns == c].double()
            n, total = len(x), len(x) + self.count[c]
            mean, shift = x.mean(0), x.mean(0) - self.mean[c]
            if len(self.scatter):
                centred = x - mean
                self.scatter += centred.T @ centred + torch.outer(shift, shift) * (self.count[c] * n / total)
            self.mean[c] += shift * (n / total)
            self.count[c] = total

    def covariance(self) -> Tensor:
        """The covariance within classes, pooled: ``Σ_c Σ_{i in c} (x_i - m_c)(x_i - m_c)ᵀ / n``."""
        return self.scatter / self.count.sum()

    def state_dict(self) -> dict[str, Tensor]:
        """Plain tensors, for a checkpoint."""
        return dict(vars(self))

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """The inverse of :meth:`state_dict`."""
        vars(self).update({name: torch.from_numpy(array).to(self.mean.device) for name, array in state.items()})


class ClassMeans(ClosedForm):
    """Base of learners that keep the moments of the features of every class."""

    settings: ClosedFormSettings
    remembers: ClassVar[tuple[str, ...]] = ("moments",)
    scatter = True  # whether they need a covariance

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.moments = ClassMoments(self.network.head.dim, self.exact_device, self.scatter)

    def absorb(self, features: Tensor, columns: Tensor) -> None:
        """Update the moments."""
        self.moments.add(features, columns)


def discriminant(mean: Tensor, covariance: Tensor) -> tuple[Tensor, Tensor]:
    """Weight ``m_cᵀ Σ⁻¹`` and bias ``-½ m_cᵀ Σ⁻¹ m_c`` of Gaussian classes with a common covariance."""
    weight = torch.linalg.solve(covariance, mean.T).T
    return weight, -0.5 * (weight * mean).sum(1)


@dataclass(frozen=True)
class NCMSettings(ClosedFormSettings):
    """Settings of the nearest class mean.

    Parameters
    ----------
    scale:
        Factor of the cosine, above 0. It sets how sharp the softmax is and does not change predictions.
    """

    scale: Above0 = 16.0


@register
class NCM(ClassMeans):
    """Nearest class mean (SimpleCIL): the cosine between a feature and each class's mean feature.

    With the mean feature ``m_c`` of class c: ``z_c(x) = scale · ⟨f(x), m_c⟩ / (‖f(x)‖ ‖m_c‖)``. Stored features have
    length one, so the head's weights are ``scale · m_c / ‖m_c‖`` and its biases 0.
    """

    name = "ncm"
    title = "NCM"
    citation = (
        'Zhou et al., "Revisiting Class-Incremental Learning with Pre-Trained Models: Generalizability and Adaptivity '
        'are All You Need", IJCV 2024 (SimpleCIL).'
    )
    settings: NCMSettings
    scatter = False

    @classmethod
    def top(cls, settings: Any, seed: int) -> Mapping[str, Any]:
        """Features of length one."""
        return {"name": "unit"}

    def solve(self) -> tuple[Tensor, Tensor]:
        """The directions of the class means."""
        mean = self.moments.mean
        return self.settings.scale * normalize(mean), mean.new_zeros(len(mean))


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
class SLDA(ClassMeans):
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
    regulariser = "shrinkage"

    def solve(self) -> tuple[Tensor, Tensor]:
        """Fisher's linear discriminants."""
        covariance, epsilon = self.moments.covariance(), self.settings.shrinkage
        identity = torch.eye(len(covariance)).to(covariance)
        return discriminant(self.moments.mean, (1 - epsilon) * covariance + epsilon * identity)


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
class FeCAM(ClassMeans):
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
        super().__init__(*args)  # moments are those of f^λ
        self.unit = ClassMoments(self.network.head.dim, self.exact_device)  # of the same at length one

    @classmethod
    def top(cls, settings: Any, seed: int) -> Mapping[str, Any]:
        """Tukey's transform."""
        return {"name": "tukey", "power": settings.power}

    def absorb(self, features: Tensor, columns: Tensor) -> None:
        """Update class means and covariances of the transformed features."""
        transformed = tukey(features, self.settings.power)
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
    identity = torch.eye(d).to(covariance)
    v1 = covariance.trace() / d
    v2 = (covariance.sum() - covariance.trace()) / max(1, d * (d - 1))  # 0 for a single feature
    return covariance + diagonal * v1 * identity + rest * v2 * (1 - identity)


def correlation(covariance: Tensor) -> Tensor:
    """``Σ_ij / √(Σ_ii Σ_jj)``; a variance of 0 is an error, as a singular matrix is."""
    deviation = covariance.diagonal().sqrt()
    if not deviation.all():
        raise LinAlgError("a feature has a variance of 0")
    return covariance / torch.outer(deviation, deviation)

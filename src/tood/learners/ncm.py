"""Nearest class mean on the features of a fixed network (SimpleCIL)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor
from torch.nn.functional import normalize

from tood.learners.base import register
from tood.learners.closed_form import ClassMoments, ClosedForm, ClosedFormSettings
from tood.learners.settings import Above0


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
class NCM(ClosedForm):
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
    remembers = ("moments",)

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.moments = ClassMoments(self.network.head.dim, self.exact_device, scatter=False)

    @classmethod
    def top(cls, settings: Any, seed: int) -> Mapping[str, Any]:
        """Features of length one."""
        return {"name": "unit"}

    def absorb(self, features: Tensor, columns: Tensor) -> None:
        """Update the class means."""
        self.moments.add(features, columns)

    def solve(self) -> tuple[Tensor, Tensor]:
        """The directions of the class means."""
        mean = self.moments.mean
        return self.settings.scale * normalize(mean), mean.new_zeros(len(mean))

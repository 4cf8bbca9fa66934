"""Averaged gradient episodic memory (A-GEM)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from tood.arrays import IntArray
from tood.learners.base import Batch, register
from tood.learners.replay import ExemplarLearner
from tood.learners.settings import Count, ExemplarSettings


@dataclass(frozen=True)
class GradientSettings(ExemplarSettings):
    """Settings of A-GEM and GEM.

    Parameters
    ----------
    reference_size:
        Number of exemplars per reference gradient; GEM has one gradient per past task.
    """

    selection: Literal["herding", "random"] = "random"
    reference_size: Count = 256


class GradientLearner(ExemplarLearner):
    """Base of A-GEM and GEM: trains on new data alone; exemplars only give reference gradients."""

    settings: GradientSettings

    def training_rows(self, task: int) -> IntArray:
        """New data."""
        return self.stream.train_rows(task)

    def reference(self, rows: IntArray) -> Tensor:
        """The gradient of the loss on some of these exemplars, ``[P]``; it overwrites the network's gradients."""
        batch = self.draw(rows, max(1, self.settings.reference_size // self.fabric.world_size))
        self.network.zero_grad()
        self.fabric.backward(cross_entropy(self.model(batch.inputs), batch.columns))
        return get_gradient(self.network)


@register
class AGEM(GradientLearner):
    """Averaged GEM: removes the part of the gradient that would raise the loss on a batch of exemplars."""

    name = "agem"
    title = "A-GEM"
    citation = 'Chaudhry et al., "Efficient Lifelong Learning with A-GEM", ICLR 2019 (Eq. 11).'

    def after_backward(self, batch: Batch) -> None:
        """Project the gradient."""
        if self.old:
            gradient = get_gradient(self.network)
            set_gradient(self.network, project(gradient, self.reference(self.memory.rows)))


def project(gradient: Tensor, reference: Tensor) -> Tensor:
    """``g - (g·r / r·r) r`` if ``g·r < 0``, else g: the nearest vector with ``g̃·r ≥ 0``; all ``[P]``."""
    product = gradient @ reference
    if product >= 0:
        return gradient
    return gradient - product / (reference @ reference) * reference


def get_gradient(network: nn.Module) -> Tensor:
    """All gradients as one vector, ``[P]``."""
    return torch.cat([(torch.zeros_like(p) if p.grad is None else p.grad).flatten() for p in network.parameters()])


def set_gradient(network: nn.Module, gradient: Tensor) -> None:
    """The inverse of :func:`get_gradient`; parameters without a gradient, such as frozen ones, still have none."""
    parameters = list(network.parameters())
    for parameter, part in zip(parameters, torch.split(gradient, [p.numel() for p in parameters]), strict=True):
        if parameter.grad is not None:
            parameter.grad = torch.empty_like(parameter).copy_(part.view_as(parameter))  # memory layout of the weight

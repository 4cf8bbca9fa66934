"""Gradient episodic memory: GEM, and A-GEM, which averages."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from tood.arrays import FloatArray, IntArray
from tood.learners.base import Batch, register
from tood.learners.replay import ExemplarLearner
from tood.learners.settings import AtLeast0, Count, ExemplarSettings

LEAST = 1e-6  # eigenvalue of the Gram matrix of references of unit length: a few times its float32 rounding


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
        scaler = getattr(self.fabric.strategy.precision, "scaler", None)  # of 16-mixed
        return get_gradient(self.network) / (scaler.get_scale() if scaler else 1.0)


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
    """All gradients as one vector, ``[P]``; parameters without one are left out."""
    return torch.cat([p.grad.flatten() for p in network.parameters() if p.grad is not None])


def set_gradient(network: nn.Module, gradient: Tensor) -> None:
    """The inverse of :func:`get_gradient`; parameters without a gradient, such as frozen ones, still have none."""
    parameters = [p for p in network.parameters() if p.grad is not None]
    for parameter, part in zip(parameters, torch.split(gradient, [p.numel() for p in parameters]), strict=True):
        parameter.grad = torch.empty_like(parameter).copy_(part.view_as(parameter))  # memory layout of the weight


@dataclass(frozen=True)
class GEMSettings(GradientSettings):
    """Settings of GEM.

    Parameters
    ----------
    margin:
        Lower bound of the weight of each reference gradient; used only if a constraint is violated.
    """

    margin: AtLeast0 = 0.5


@register
class GEM(GradientLearner):
    """Gradient Episodic Memory: steps that, to first order, do not raise the loss on exemplars of any past task."""

    name = "gem"
    title = "GEM"
    citation = 'Lopez-Paz and Ranzato, "Gradient Episodic Memory for Continual Learning", NeurIPS 2017 (Eqs. 8 to 11).'
    settings: GEMSettings

    def after_backward(self, batch: Batch) -> None:
        """Project the gradient."""
        if not self.old:
            return
        gradient = get_gradient(self.network)
        owners = self.stream.partition.column_tasks[self.memory.labels]
        past = [self.memory.rows[owners == task] for task in range(self.learned)]
        references = torch.stack([self.reference(rows) for rows in past])
        set_gradient(self.network, project_all(gradient, references, self.settings.margin))


def project_all(gradient: Tensor, references: Tensor, margin: float) -> Tensor:
    """``argmin ‖g̃ - g‖² subject to G g̃ ≥ 0`` (margin 0), through its dual.

    Parameters
    ----------
    gradient:
        g, ``[P]``.
    references:
        G ``[T, P]``, one row per past task.
    margin:
        Lower bound of each dual variable: ``g̃ = g + Gᵀv`` with ``v ≥ margin``.
    """
    products = references @ gradient
    if bool((products >= 0).all()):
        return gradient
    gram = (references @ references.T).cpu().double().numpy()
    weights = solve_dual(gram, products.cpu().double().numpy(), margin)
    return gradient + torch.from_numpy(weights).to(references) @ references


def solve_dual(gram: FloatArray, products: FloatArray, margin: float) -> FloatArray:
    """``argmin ½ vᵀ GGᵀ v + (G g)ᵀ v subject to v ≥ margin`` (Eq. 11), ``[T]``.

    References are scaled to unit length: ``w = v · length``. With ``w = u + margin · length`` and ``GGᵀ = AᵀA`` this is
    the non-negative least-squares problem ``min ‖A u + b‖, u ≥ 0``. Nearly dependent references leave eigenvalues that
    are rounding; these are raised to :data:`LEAST`, or the weights could be huge.
    """
    from scipy.optimize import nnls

    lengths = np.sqrt(np.diagonal(gram))
    lengths = np.where(lengths > 0, lengths, 1.0)
    values, vectors = np.linalg.eigh(gram / np.outer(lengths, lengths))
    root = np.sqrt(np.maximum(values, LEAST))
    a, low = root[:, None] * vectors.T, margin * lengths
    b = vectors.T @ (products / lengths) / root + a @ low
    return (nnls(a, -b, maxiter=100 * len(a))[0] + low) / lengths

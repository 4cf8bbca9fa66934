"""Gradient episodic memory (GEM)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from tood.arrays import FloatArray
from tood.learners.agem import GradientLearner, GradientSettings, get_gradient, set_gradient
from tood.learners.base import Batch, register
from tood.learners.settings import AtLeast0

LEAST = 1e-6  # eigenvalue of the Gram matrix of references of unit length: a few times its float32 rounding


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
        set_gradient(self.network, project(gradient, references, self.settings.margin))


def project(gradient: Tensor, references: Tensor, margin: float) -> Tensor:
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

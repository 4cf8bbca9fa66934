"""Quadratic penalties on changes of weights that old tasks need: EWC and SI."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from tood.arrays import IntArray
from tood.learners.base import Batch, Learner, register
from tood.learners.settings import Above0, AtLeast0, CountOrNone, Settings

Weights = dict[str, Tensor]  # by name of the parameter


class Penalised(Learner):
    """Base of EWC and SI: ``importance`` and ``anchor`` of every weight."""

    remembers: ClassVar[tuple[str, ...]] = ("importance", "anchor")

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.importance: Weights = {}
        self.anchor: Weights = {}

    def zeros(self) -> Weights:
        """A zero for every weight."""
        return {name: torch.zeros_like(weight) for name, weight in self.network.named_parameters()}

    def copy(self) -> Weights:
        """A copy of every weight."""
        return {name: weight.detach().clone() for name, weight in self.network.named_parameters()}

    def widen(self, stored: Weights) -> Weights:
        """``stored``, with zeros for new rows of the head and for weights that it does not have."""
        wide = self.zeros()
        for name, tensor in stored.items():
            old_rows(wide[name], tensor).copy_(tensor)
        return wide


def old_rows(tensor: Tensor, stored: Tensor) -> Tensor:
    """The rows of ``tensor`` that ``stored`` has, as a view; a scalar has no rows."""
    return tensor[: len(stored)] if stored.ndim else tensor


@dataclass(frozen=True)
class EWCSettings(Settings):
    """Settings of EWC.

    Parameters
    ----------
    strength:
        λ, the weight of the penalty.
    fisher_samples:
        Number of training samples per task for the Fisher information; 0 for all.
    """

    strength: AtLeast0 = 100.0
    fisher_samples: CountOrNone = 500


@register
class EWC(Penalised):
    """Elastic Weight Consolidation: a quadratic penalty on changes of weights that old tasks need.

    The Fisher information ``F_k`` measures how much task k needs a weight. Up to a constant, the penalties
    ``Σ_k F_k (θ - θ_k)²`` equal one penalty with the sum of the ``F_k`` around the weighted mean of the ``θ_k``, so two
    numbers per weight suffice for any number of tasks.
    """

    name = "ewc"
    title = "EWC"
    citation = 'Kirkpatrick et al., "Overcoming catastrophic forgetting in neural networks", PNAS 2017 (Eq. 3).'
    settings: EWCSettings

    def loss(self, batch: Batch, logits: Tensor) -> Tensor:
        """``CE + λ/2 Σ_i F_i (θ_i - θ*_i)²``."""
        held = penalty(self.network, self.importance, self.anchor)
        return cross_entropy(logits, batch.columns) + self.settings.strength / 2 * held

    def end_task(self, task: int) -> None:
        """Add the Fisher information of this task at the weights it ended with."""
        rows = self.stream.train_rows(task)
        count = min(self.settings.fisher_samples or len(rows), len(rows))
        fisher, now = self.fisher(self.random.choice(rows, count, replace=False)), self.copy()
        old, self.anchor = self.widen(self.importance), self.widen(self.anchor)
        for name, weight in now.items():
            total = self.importance[name] = old[name] + fisher[name]
            share = torch.where(total > 0, fisher[name] / total.clamp(min=1e-38), 1.0)
            self.anchor[name] += share * (weight - self.anchor[name])

    def fisher(self, rows: IntArray) -> Weights:
        """``F_i = mean_x (∂ log p(y|x) / ∂θ_i)²``, one gradient per sample, not augmented, in evaluation mode."""
        self.network.eval()
        trained = {name: weight for name, weight in self.network.named_parameters() if weight.requires_grad}
        total = self.zeros()
        for row in rows:
            logits = self.network(self.prepare(self.stream.train.take(row[None])))
            loss = cross_entropy(logits, self.tensor(self.columns[row[None]]))
            gradients = torch.autograd.grad(loss, list(trained.values()), allow_unused=True, materialize_grads=True)
            for name, gradient in zip(trained, gradients, strict=True):
                total[name] += gradient.square()
        return {name: tensor / len(rows) for name, tensor in total.items()}


def penalty(network: nn.Module, importance: Weights, anchor: Weights) -> Tensor:
    """``Σ_i importance_i (θ_i - anchor_i)²``; new rows of the head are free."""
    total = torch.zeros((), device=next(network.parameters()).device)
    for name, parameter in network.named_parameters():
        if name in importance:
            weight = importance[name]
            total = total + (weight * (old_rows(parameter, weight) - anchor[name]).square()).sum()
    return total


@dataclass(frozen=True)
class SISettings(Settings):
    """Settings of SI.

    Parameters
    ----------
    strength:
        c, the weight of the penalty.
    damping:
        ξ, which bounds the importance of weights that hardly changed.
    """

    strength: AtLeast0 = 1.0
    damping: Above0 = 0.1


@register
class SI(Penalised):
    """Synaptic Intelligence: a quadratic penalty on changes of weights that lowered the loss of old tasks.

    ``importance`` is the paper's Ω, ``anchor`` θ at the start of the task, and ``path`` ω.
    """

    name = "si"
    title = "SI"
    citation = 'Zenke et al., "Continual Learning Through Synaptic Intelligence", ICML 2017 (Eqs. 3 to 5).'
    settings: SISettings
    remembers = ("importance", "anchor", "path")
    path: Weights

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.path = {}

    def begin_task(self, task: int) -> None:
        """Start a new path where the last one ended."""
        self.importance, self.anchor, self.path = self.widen(self.importance), self.copy(), self.zeros()

    def after_backward(self, batch: Batch) -> None:
        """Store the gradient g of the task's loss, then add the gradient of the penalty ``c Σ Ω (θ - θ*)²``."""
        self.before = self.copy()
        self.gradient: Weights = {}
        for name, parameter in self.network.named_parameters():
            if parameter.grad is not None:
                self.gradient[name] = parameter.grad.clone()
                held = self.importance[name] * (parameter.detach() - self.anchor[name])
                parameter.grad.add_(held, alpha=2 * self.settings.strength)

    def after_step(self, batch: Batch, logits: Tensor) -> None:
        """``ω ← ω - g · Δθ`` (Eq. 3)."""
        for name, parameter in self.network.named_parameters():
            if name in self.gradient:
                self.path[name] -= self.gradient[name] * (parameter.detach() - self.before[name])

    def end_task(self, task: int) -> None:
        """``Ω ← Ω + ω / (Δ² + ξ)`` (Eq. 5), without negative terms, which would repel weights from the anchor."""
        for name, parameter in self.network.named_parameters():
            moved = (parameter.detach() - self.anchor[name]).square()
            self.importance[name] += self.path[name].clamp(min=0) / (moved + self.settings.damping)

"""Elastic weight consolidation (EWC)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from tood.arrays import IntArray
from tood.learners.base import Batch, Learner, register
from tood.learners.settings import AtLeast0, CountOrNone, Settings

Weights = dict[str, Tensor]  # by name of the parameter


@dataclass(frozen=True)
class EWCSettings(Settings):
    """Settings of EWC.

    Parameters
    ----------
    strength:
        λ, the weight of the penalty.
    mode:
        ``"separate"``: one penalty per task. ``"online"``: one penalty around the latest weights, with the Fisher
        information of earlier tasks × ``decay``.
    decay:
        Factor of the Fisher information of earlier tasks with ``"online"``.
    fisher:
        Gradients of the log-probability of the true ``"labels"``, or of labels ``"sampled"`` from the network.
    fisher_samples:
        Number of training samples per task for the Fisher information; 0 for all.
    """

    strength: AtLeast0 = 100.0
    mode: Literal["separate", "online"] = "separate"
    decay: AtLeast0 = 1.0
    fisher: Literal["labels", "sampled"] = "labels"
    fisher_samples: CountOrNone = 500


@register
class EWC(Learner):
    """Elastic Weight Consolidation: a quadratic penalty on changes of weights that old tasks need.

    The Fisher information ``F_k`` measures how much task k needs a weight. Up to a constant, the separate penalties
    ``Σ_k F_k (θ - θ_k)²`` equal one penalty with the sum of the ``F_k`` around the weighted mean of the ``θ_k``, so two
    numbers per weight suffice for any number of tasks.
    """

    name = "ewc"
    title = "EWC"
    citation = (
        'Kirkpatrick et al., "Overcoming catastrophic forgetting in neural networks", PNAS 2017 (Eq. 3). '
        'Online: Schwarz et al., "Progress & Compress", ICML 2018.'
    )
    settings: EWCSettings
    remembers = ("importance", "anchor")

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.importance: Weights = {}
        self.anchor: Weights = {}

    def loss(self, batch: Batch, logits: Tensor) -> Tensor:
        """``CE + λ/2 Σ_i F_i (θ_i - θ*_i)²``."""
        held = penalty(self.network, self.importance, self.anchor)
        return cross_entropy(logits, batch.columns) + self.settings.strength / 2 * held

    def end_task(self, task: int) -> None:
        """Add the Fisher information of this task at the weights it ended with."""
        rows = self.stream.train_rows(task)
        count = min(self.settings.fisher_samples or len(rows), len(rows))
        fisher = self.fisher(self.random.choice(rows, count, replace=False))
        old, anchor = widen(self.importance, self.network), widen(self.anchor, self.network)
        now = copy_weights(self.network)
        if self.settings.mode == "online":
            self.importance = {name: self.settings.decay * old[name] + fisher[name] for name in now}
            self.anchor = now
            return
        self.importance = {name: old[name] + fisher[name] for name in now}
        for name, total in self.importance.items():
            share = torch.where(total > 0, fisher[name] / total.clamp(min=1e-38), 1.0)
            self.anchor[name] = anchor[name] + share * (now[name] - anchor[name])

    def fisher(self, rows: IntArray) -> Weights:
        """``F_i = mean_x (∂ log p(y|x) / ∂θ_i)²``, one gradient per sample, not augmented, in evaluation mode."""
        self.network.eval()
        weights = dict(self.network.named_parameters())
        trained = {name: weight for name, weight in weights.items() if weight.requires_grad}
        total = {name: torch.zeros_like(weight) for name, weight in weights.items()}
        for row in rows:
            logits = self.network(self.prepare(self.stream.train.take(row[None])))
            target = torch.tensor([self.columns[row]], device=logits.device)
            if self.settings.fisher == "sampled":
                target = logits.detach().softmax(1).cpu().multinomial(1, generator=self.generator)[0].to(logits.device)
            loss = cross_entropy(logits, target)
            gradients = torch.autograd.grad(loss, list(trained.values()), allow_unused=True, materialize_grads=True)
            for name, gradient in zip(trained, gradients, strict=True):
                total[name] += gradient.square()
        return {name: tensor / len(rows) for name, tensor in total.items()}


def copy_weights(network: nn.Module) -> Weights:
    """A copy of every trained weight by name."""
    return {name: parameter.detach().clone() for name, parameter in network.named_parameters()}


def widen(stored: Weights, network: nn.Module) -> Weights:
    """``stored``, with zeros for new rows of the head and for weights that it does not have."""
    wide = {name: torch.zeros_like(parameter) for name, parameter in network.named_parameters()}
    for name, tensor in stored.items():
        _old_rows(wide[name], tensor).copy_(tensor)
    return wide


def penalty(network: nn.Module, importance: Weights, anchor: Weights) -> Tensor:
    """``Σ_i importance_i (θ_i - anchor_i)²``; new rows of the head are free."""
    total = torch.zeros((), device=next(network.parameters()).device)
    for name, parameter in network.named_parameters():
        if name in importance:
            weight = importance[name]
            total = total + (weight * (_old_rows(parameter, weight) - anchor[name]).square()).sum()
    return total


def _old_rows(tensor: Tensor, stored: Tensor) -> Tensor:
    """The rows of ``tensor`` that ``stored`` has, as a view; a scalar has no rows."""
    return tensor[: len(stored)] if stored.ndim else tensor

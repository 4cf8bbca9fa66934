"""Synaptic intelligence (SI)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from tood.learners.base import Batch, Learner, register
from tood.learners.ewc import Weights, copy_weights, widen
from tood.learners.settings import Above0, AtLeast0, Settings


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
class SI(Learner):
    """Synaptic Intelligence: a quadratic penalty on changes of weights that lowered the loss of old tasks."""

    name = "si"
    title = "SI"
    citation = 'Zenke et al., "Continual Learning Through Synaptic Intelligence", ICML 2017 (Eqs. 3 to 5).'
    settings: SISettings
    remembers = ("importance", "anchor", "path")

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.importance: Weights = {}  # Ω
        self.anchor: Weights = {}  # θ at the start of the task
        self.path: Weights = {}  # ω

    def begin_task(self, task: int) -> None:
        """Start a new path where the last one ended."""
        self.importance = widen(self.importance, self.network)
        self.anchor = copy_weights(self.network)
        self.path = widen({}, self.network)

    def after_backward(self, batch: Batch) -> None:
        """Store the gradient g of the task's loss, then add the gradient of the penalty ``c Σ Ω (θ - θ*)²``."""
        self.before = copy_weights(self.network)
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

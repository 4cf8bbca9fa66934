"""Weight aligning (WA)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from tood.learners.base import Batch, register
from tood.learners.replay import ExemplarLearner, weighted_distillation
from tood.learners.settings import Above0, ExemplarSettings
from tood.models import GrowingHead


@dataclass(frozen=True)
class WASettings(ExemplarSettings):
    """Settings of WA.

    Parameters
    ----------
    temperature:
        Temperature of the distillation.
    nonnegative:
        Clip the head's weights to 0 or more after every step, as the paper does (later code bases do not).
    """

    temperature: Above0 = 2.0
    nonnegative: bool = False


@register
class WA(ExemplarLearner):
    """Weight Aligning: replay and distillation; then new weights are scaled to the mean norm of the old ones."""

    name = "wa"
    title = "WA"
    citation = 'Zhao et al., "Maintaining Discrimination and Fairness in Class Incremental Learning", CVPR 2020.'
    settings: WASettings
    distils = True

    def loss(self, batch: Batch, logits: Tensor) -> Tensor:
        """``(1 - λ) CE + λ KD`` with ``λ = n_old / n``."""
        return weighted_distillation(self, batch, logits, self.settings.temperature)

    def after_step(self, batch: Batch, logits: Tensor) -> None:
        """Clip the head's weights at 0 if ``nonnegative``."""
        if self.settings.nonnegative:
            self.network.head.weight.data.clamp_(min=0)

    def end_task(self, task: int) -> None:
        """Align, then keep exemplars."""
        if self.old:
            self.facts = {"alignment": np.array(align(self.network.head, self.old))}
        super().end_task(task)


@torch.no_grad()
def align(head: GrowingHead, old: int) -> float:
    """``w_new ← γ w_new``, ``γ = mean‖w_old‖ / mean‖w_new‖`` (Eqs. 9 and 10); biases stay. Returns γ."""
    lengths = head.weight.norm(dim=1)
    gamma = float(lengths[:old].mean() / lengths[old:].mean().clamp(min=1e-12))
    head.weight[old:] *= gamma
    return gamma

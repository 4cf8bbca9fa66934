"""Learning without forgetting."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torch import Tensor
from torch.nn.functional import cross_entropy

from tood.learners.base import Batch, Learner
from tood.learners.distillation import distillation
from tood.learners.settings import Settings

__all__ = ["LwF"]


@dataclass(frozen=True)
class LwFSettings(Settings):
    """Of LwF.

    Parameters
    ----------
    alpha, temperature:
        Weight and temperature of the distillation.
    ce:
        Cross-entropy over ``"all"`` columns seen, or over the ``"new"`` ones alone. This sets how far the logits of
        old tasks fall behind those of the newest.
    """

    alpha: float = 1.0
    temperature: float = 2.0
    ce: Literal["all", "new"] = "all"


class LwF(Learner):
    """Cross-entropy on the new task plus distillation of the old columns; no memory.

    References
    ----------
    Li and Hoiem, "Learning without Forgetting", TPAMI 2017 (Eq. 1).
    """

    name = "lwf"
    settings: LwFSettings
    distils = True

    def loss(self, batch: Batch, logits: Tensor) -> Tensor:
        """``CE + α · KD(z_old, teacher)``."""
        s = self.settings
        first = self.old if s.ce == "new" else 0
        loss = cross_entropy(logits[:, first:], batch.columns - first)
        if self.old:
            loss = loss + s.alpha * distillation(logits[:, : self.old], self.teach(batch.inputs), s.temperature)
        return loss

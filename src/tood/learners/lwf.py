"""Learning without forgetting (LwF)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from torch import Tensor
from torch.nn.functional import cross_entropy

from tood.errors import ToodError
from tood.learners.base import Batch, Learner
from tood.learners.distillation import distillation
from tood.learners.registry import register
from tood.learners.settings import ABOVE_0, AT_LEAST_0, Ranges, Settings


@dataclass(frozen=True)
class LwFSettings(Settings):
    """Settings of LwF.

    Parameters
    ----------
    alpha, temperature:
        Weight and temperature of the distillation.
    ce:
        Cross-entropy over the ``"new"`` columns alone, as in the original method, or over ``"all"`` columns seen. This
        determines how far the logits of old tasks fall below those of the newest.
    ce_weight:
        Weight of the cross-entropy: ``"one"``, as in the original method, or ``"inverse_tasks"``, 1 / (number of tasks
        seen), as the authors of the TOOD paper ran it.
    """

    RANGES: ClassVar[Ranges] = {"alpha": AT_LEAST_0, "temperature": ABOVE_0}
    alpha: float = 1.0
    temperature: float = 2.0
    ce: Literal["new", "all"] = "new"
    ce_weight: Literal["one", "inverse_tasks"] = "one"


@register
class LwF(Learner):
    """Learning without Forgetting: cross-entropy on the new task, distillation of the old columns, no memory."""

    name = "lwf"
    title = "LwF"
    citation = 'Li and Hoiem, "Learning without Forgetting", TPAMI 2017 (Eq. 1).'
    settings: LwFSettings
    distils = True

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if self.settings.ce == "new" and 1 in self.stream.sizes[1:]:
            raise ToodError(
                "ce: the cross-entropy over the new columns teaches nothing if a task has one class; use 'all'"
            )

    def loss(self, batch: Batch, logits: Tensor) -> Tensor:
        """``w · CE + α · KD(z_old, teacher)``, with w = 1 or 1 / (t + 1)."""
        s = self.settings
        first = self.old if s.ce == "new" else 0
        loss = cross_entropy(logits[:, first:], batch.columns - first)
        if s.ce_weight == "inverse_tasks":
            loss = loss / (self.learned + 1)
        if self.old:
            loss = loss + s.alpha * distillation(logits[:, : self.old], self.teach(batch.inputs), s.temperature)
        return loss

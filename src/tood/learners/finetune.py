"""Fine-tuning: no measure against forgetting; the floor of every comparison."""

from __future__ import annotations

from torch import Tensor
from torch.nn.functional import cross_entropy

from tood.learners.base import Batch, Learner
from tood.learners.registry import register

__all__ = ["FineTune"]


@register
class FineTune(Learner):
    """Cross-entropy on the new task alone, over all columns seen."""

    name = "finetune"
    title = "Fine-tuning"

    def loss(self, batch: Batch, logits: Tensor) -> Tensor:
        """``-log softmax(z)_y``."""
        return cross_entropy(logits, batch.columns)

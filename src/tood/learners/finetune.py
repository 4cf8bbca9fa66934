"""Fine-tuning: no measure against forgetting; a lower bound for comparison."""

from __future__ import annotations

from tood.learners.base import Learner, register


@register
class FineTune(Learner):
    """Fine-tuning: cross-entropy on the new task alone, over all columns seen."""

    name = "finetune"
    title = "Fine-tuning"

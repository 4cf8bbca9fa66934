"""Experience replay (ER)."""

from __future__ import annotations

from tood.learners.base import register
from tood.learners.replay import ReservoirLearner


@register
class ER(ReservoirLearner):
    """Experience Replay: cross-entropy on each batch of new data joined with a batch from a reservoir."""

    name = "er"
    title = "ER"
    citation = 'Chaudhry et al., "On Tiny Episodic Memories in Continual Learning", 2019 (Algorithm 1).'

"""Experience replay (ER)."""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor

from tood.arrays import IntArray
from tood.learners.base import Batch
from tood.learners.registry import register
from tood.learners.replay import ReservoirLearner


@register
class ER(ReservoirLearner):
    """Experience Replay: cross-entropy on each batch of new data joined with a batch from a reservoir."""

    name = "er"
    title = "ER"
    citation = 'Chaudhry et al., "On Tiny Episodic Memories in Continual Learning", 2019 (Algorithm 1).'

    def batches(self, rows: IntArray) -> Iterator[Batch]:
        """``B_n ∪ B_M``; the new rows are offered to the reservoir after the step."""
        for new in self.shuffled(rows):
            old = self.replay()
            yield new if old is None else new.join(old)

    def after_step(self, batch: Batch, logits: Tensor) -> None:
        """Reservoir sampling of the new rows."""
        self.memory.offer(self.shown(batch))

"""Experience replay: ER, and ER-ACE with asymmetric cross-entropy."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from tood.learners.base import Batch, register
from tood.learners.replay import ReservoirLearner


@register
class ER(ReservoirLearner):
    """Experience Replay: cross-entropy on each batch of new data joined with a batch from a reservoir."""

    name = "er"
    title = "ER"
    citation = 'Chaudhry et al., "On Tiny Episodic Memories in Continual Learning", 2019 (Algorithm 1).'


@register
class ERACE(ReservoirLearner):
    """ER with Asymmetric Cross-Entropy: new samples do not lower the logits of classes absent from their batch.

    With the classes ``C_new`` of the new samples of a batch ``B_n`` and a batch ``B_M`` from the memory::

        L = CE(B_n; columns C_new) + CE(B_M; all columns)

    so that old classes are pushed down only by replayed samples, which contain them.
    """

    name = "er_ace"
    title = "ER-ACE"
    citation = (
        'Caccia et al., "New Insights on Reducing Abrupt Representation Change in Online Continual Learning", '
        "ICLR 2022."
    )

    def loss(self, batch: Batch, logits: Tensor) -> Tensor:
        """``CE(B_n; C_new) + CE(B_M)``."""
        new = len(batch.rows)
        absent = torch.ones(logits.shape[1], dtype=torch.bool, device=logits.device)
        absent[batch.columns[:new]] = False
        loss = cross_entropy(logits[:new].masked_fill(absent, -torch.inf), batch.columns[:new])
        if len(logits) > new:
            loss = loss + cross_entropy(logits[new:], batch.columns[new:])
        return loss

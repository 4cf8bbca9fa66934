"""Dynamically expandable representation: a new feature extractor per task."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from tood.learners.base import Batch, register
from tood.learners.distillation import align
from tood.learners.replay import ExemplarLearner
from tood.learners.settings import AtLeast0, ExemplarSettings
from tood.models import GrowingHead, Network
from tood.streams import Stream


class Branches(nn.Module):
    """Feature extractors side by side, of which only the newest is trained."""

    def __init__(self, first: nn.Module, dim: int) -> None:
        super().__init__()
        self.branches = nn.ModuleList([first])
        self.auxiliary = GrowingHead(dim)  # on the newest features; for training only
        self.newest: Tensor | None = None

    @property
    def dim(self) -> int:
        """The number of features of all branches."""
        return self.auxiliary.dim * len(self.branches)

    def add(self, classes: int) -> None:
        """Freeze all branches, and add a copy of the last one; the auxiliary head starts at 0."""
        newest = copy.deepcopy(self.branches[-1])
        self.branches.requires_grad_(False).append(newest)
        self.auxiliary.resize(0)
        self.auxiliary.resize(classes + 1)

    def train(self, mode: bool = True) -> Branches:
        """As of any module, except that frozen branches stay in evaluation mode."""
        super().train(mode)
        self.branches[:-1].eval()
        return self

    def forward(self, x: Tensor) -> Tensor:
        """The features of all branches, ``[n, D]``."""
        parts = [branch(x) for branch in self.branches]
        self.newest = parts[-1] if self.training else None
        return torch.cat(parts, 1)


@dataclass(frozen=True)
class ExpandableSettings(ExemplarSettings):
    """Settings of expandable DER.

    Parameters
    ----------
    auxiliary:
        λ, the weight of the auxiliary loss.
    """

    auxiliary: AtLeast0 = 1.0


@register
class Expandable(ExemplarLearner):
    """Expandable DER: old feature extractors are frozen, and each task adds a new one, which begins as the last.

    With the features ``u = [F_1(x), …, F_t(x)]`` of new data and exemplars, and ``z = W u + b`` of all classes::

        L = CE(z, y) + λ CE(A F_t(x), ỹ),  ỹ = the new class of y, or "old"

    The auxiliary head A makes the new extractor learn what tells the new classes from each other and from old ones.
    In W, old classes begin with the weights they had, and 0 for new features. As in PyCIL, no channel is pruned, and
    at the end new weights are aligned as by WA, in place of a second training of the head on balanced data.
    """

    name = "expandable"
    title = "Expandable DER"
    citation = 'Yan et al., "DER: Dynamically Expandable Representation for Class Incremental Learning", CVPR 2021.'
    settings: ExpandableSettings

    def __init__(self, stream: Stream, network: Network, *args: Any, **kwargs: Any) -> None:
        self.branches = Branches(network.backbone, network.head.dim)  # the backbone
        super().__init__(stream, Network(self.branches, GrowingHead(self.branches.dim)), *args, **kwargs)

    def expand(self, task: int) -> None:
        """Add a branch, and its features to the head."""
        if not task:
            return
        self.branches.add(self.stream.sizes[task])
        old, head = self.network.head, GrowingHead(self.branches.dim).to(self.fabric.device)
        head.resize(old.columns)
        with torch.no_grad():
            head.weight[:, : old.dim], head.bias[:] = old.weight, old.bias
        self.network.head = head

    def loss(self, batch: Batch, logits: Tensor) -> Tensor:
        """``CE(z, y) + λ CE(A F_t(x), ỹ)``; in the first task the cross-entropy alone."""
        loss, branches = cross_entropy(logits, batch.columns), self.branches
        newest, branches.newest = branches.newest, None  # a network with a graph cannot be copied
        if not self.old or newest is None:
            return loss
        targets = (batch.columns - self.old + 1).clamp_min(0)  # 0: an old class
        return loss + self.settings.auxiliary * cross_entropy(branches.auxiliary(newest), targets)

    def end_task(self, task: int) -> None:
        """Align, then keep exemplars."""
        if self.old:
            self.facts = {"alignment": np.array(align(self.network.head, self.old))}
        super().end_task(task)

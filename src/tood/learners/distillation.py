"""Learners that distil from the network as it was before the task: LwF, WA, SS-IL."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, linear

from tood.arrays import IntArray
from tood.errors import ToodError
from tood.learners.base import Batch, Learner, register
from tood.learners.replay import ExemplarLearner
from tood.learners.settings import Above0, AtLeast0, Count, CountOrNone, ExemplarSettings, Settings
from tood.models import GrowingHead


def distillation(logits: Tensor, teacher: Tensor, temperature: float) -> Tensor:
    """``-mean_batch Σ_c softmax(teacher / T)_c · log softmax(logits / T)_c``, without the factor T².

    Parameters
    ----------
    logits, teacher:
        ``[n, C]`` of the same columns; both softmaxes run over the columns.
    temperature:
        T.

    References
    ----------
    Hinton et al., "Distilling the Knowledge in a Neural Network", 2015.
    """
    return cross_entropy(logits / temperature, (teacher / temperature).softmax(1))


def weighted_distillation(learner: Learner, batch: Batch, logits: Tensor, temperature: float) -> Tensor:
    """``λ KD + (1 - λ) CE`` with ``λ = n_old / n``: the loss of BiC and WA."""
    loss = cross_entropy(logits, batch.columns)
    if not learner.old:
        return loss
    share = learner.old / logits.shape[1]
    kept = distillation(logits[:, : learner.old], learner.teach(batch.inputs), temperature)
    return share * kept + (1 - share) * loss


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
    warm_up:
        Epochs of SGD on the new columns alone before each task after the first, on fixed features that are not
        augmented; the original method has such a step, the code bases that compare learners do not.
    """

    alpha: AtLeast0 = 1.0
    temperature: Above0 = 2.0
    ce: Literal["new", "all"] = "new"
    ce_weight: Literal["one", "inverse_tasks"] = "one"
    warm_up: CountOrNone = 0


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

    def begin_task(self, task: int) -> None:
        """Warm-up: train the new columns with everything else fixed (Section 3 of the paper)."""
        s, head, rows = self.settings, self.network.head, self.stream.train_rows(task)
        if not (task and s.warm_up):
            return
        features, targets = self.outputs(rows)[0], self.tensor(self.columns[rows]) - self.old
        new = [part[self.old :].detach().clone().requires_grad_() for part in (head.weight, head.bias)]
        optimizer = torch.optim.SGD(new, s.lr, s.momentum, weight_decay=s.weight_decay)
        for _ in range(s.warm_up):
            for chosen in torch.split(torch.randperm(len(rows), generator=self.generator), s.batch_size):
                optimizer.zero_grad()
                torch.autograd.backward(cross_entropy(linear(features[chosen], *new), targets[chosen]))
                optimizer.step()
        with torch.no_grad():
            head.weight[self.old :], head.bias[self.old :] = new

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


@dataclass(frozen=True)
class SSILSettings(ExemplarSettings):
    """Settings of SS-IL.

    Parameters
    ----------
    temperature:
        Temperature of the distillation.
    replay_size:
        Number of exemplars per batch of new data.
    """

    selection: Literal["herding", "random"] = "random"
    temperature: Above0 = 2.0
    replay_size: Count = 32


@register
class SSIL(ExemplarLearner):
    """Separated Softmax: new and old classes never compete in one softmax, and each old task is distilled by itself.

    With new samples N, exemplars M, old columns O, new columns P, and the columns ``T_s`` of task s::

        L = (Σ_N CE(z_P) + Σ_M CE(z_O)) / (|N| + |M|) + τ² Σ_{s < t} KD(z_{T_s}, teacher_{T_s}; τ)

    Every batch has the same share of exemplars (ratio-preserving batches).
    """

    name = "ssil"
    title = "SS-IL"
    citation = 'Ahn et al., "SS-IL: Separated Softmax for Incremental Learning", ICCV 2021.'
    settings: SSILSettings
    distils = True

    def training_rows(self, task: int) -> IntArray:
        """New data."""
        return self.stream.train_rows(task)

    def batches(self, rows: IntArray) -> Iterator[Batch]:
        """Each batch of new data joined by exemplars."""
        count = max(1, self.settings.replay_size // self.fabric.world_size)
        for new in self.shuffled(rows):
            yield new.join(self.draw(self.memory.rows, count)) if len(self.memory) else new

    def loss(self, batch: Batch, logits: Tensor) -> Tensor:
        """Separated softmax and, from the second task on, task-wise distillation."""
        new, old, temperature = len(batch.rows), self.old, self.settings.temperature
        loss = cross_entropy(logits[:new, old:], batch.columns[:new] - old, reduction="sum")
        if not old:
            return loss / new
        loss = loss + cross_entropy(logits[new:, :old], batch.columns[new:], reduction="sum")
        sizes, teacher = list(self.stream.sizes[: self.learned]), self.teach(batch.inputs)
        blocks = zip(torch.split(logits[:, :old], sizes, 1), torch.split(teacher, sizes, 1), strict=True)
        kept = sum(distillation(*block, temperature) for block in blocks)
        return loss / len(logits) + temperature**2 * kept

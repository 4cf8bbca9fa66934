"""Learning without forgetting (LwF)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, linear

from tood.errors import ToodError
from tood.learners.base import Batch, Learner, register
from tood.learners.settings import Above0, AtLeast0, CountOrNone, Settings


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

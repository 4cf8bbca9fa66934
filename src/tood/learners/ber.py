"""Bi-directional energy regularisation (BER): a second head, for scoring only."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from tood.errors import ToodError
from tood.learners.settings import Above0, AtLeast0, Count, From0Below1, From0To1, Settings, learning_rate

if TYPE_CHECKING:
    from tood.learners.base import Learner
    from tood.models import GrowingHead

RISE = 10.0  # fine-tuning has failed if the last epoch's loss exceeds the first batch's by this factor


@dataclass(frozen=True)
class BERSettings:
    """Settings of BER.

    Parameters
    ----------
    epochs, lr, momentum, weight_decay:
        Training of the second head; the learning rate decays to 0 along a cosine.
    m_in, m_out:
        Targets of the energy ``-log Σ exp z``: known samples are pushed below ``m_in``, mixed ones above ``m_out``.
    weight:
        Weight of all energy terms.
    trace:
        Share of a new sample that is mixed into an exemplar.
    pool:
        Data that pseudo-OOD samples are mixed from: the task's ``"new"`` data, as in OpenCIL, or ``"all"`` data (new
        and memory), as the authors of the TOOD paper ran it with iCaRL.
    beta:
        Mixing proportions are drawn from Beta(beta, beta).
    """

    epochs: Count = 10
    lr: Above0 = 0.1
    momentum: From0Below1 = 0.9
    weight_decay: AtLeast0 = 5e-4
    m_in: float = -27.0
    m_out: float = -5.0
    weight: AtLeast0 = 0.1
    trace: From0To1 = 0.002
    pool: Literal["new", "all"] = "new"
    beta: Above0 = 1.0


class BER:
    """Fine-tunes a copy of the head with everything else frozen; the learner itself stays unchanged.

    References
    ----------
    Miao et al., "OpenCIL: Benchmarking Out-of-Distribution Detection in Class-Incremental Learning", 2024.
    """

    def __init__(self, settings: BERSettings) -> None:
        self.settings = settings

    def fit(self, learner: Learner, task: int) -> GrowingHead:
        """Train the second head after a task, on its new data and on exemplars of older classes, if there are any.

        Parameters
        ----------
        learner:
            The learner, which has just learned the task.
        task:
            The task.
        """
        s = self.settings
        features = learner.network.fused().features
        head = copy.deepcopy(learner.network.head)  # BiC's correction stays in it
        optimizer = torch.optim.SGD(head.parameters(), s.lr, s.momentum, weight_decay=s.weight_decay)
        model, optimizer = learner.fabric.setup(head, optimizer)
        schedule = Settings(epochs=s.epochs, lr=s.lr, schedule="cosine")
        rows = learner.stream.train_rows(task)
        memory = learner.memory_rows()
        memory = memory[learner.columns[memory] < learner.old]
        if s.pool == "all":
            rows = np.concatenate([rows, memory])
        losses: list[Tensor] = []
        for epoch in range(s.epochs):
            learner.draw_from(task, learner.settings.epochs + 2 + epoch, learner.fabric.global_rank)
            for group in optimizer.param_groups:
                group["lr"] = learning_rate(schedule, epoch, 0.0)
            for new in learner.shuffled(rows):
                known, columns, mixed = [new.inputs], [new.columns], self._mix(learner, new.inputs)
                if len(memory):
                    old = learner.draw(memory, len(new.rows))
                    known.append(torch.lerp(old.inputs, new.inputs[: len(old.rows)], s.trace))  # OTER
                    columns.append(old.columns)
                with torch.no_grad():
                    inputs = features(torch.cat([*known, mixed]))
                optimizer.zero_grad()
                loss = self._loss(model(inputs), columns)
                learner.fabric.backward(loss)
                optimizer.step()
                losses.append(loss.detach())
        self._check_fall(task, losses)
        return head

    def _check_fall(self, task: int, losses: list[Tensor]) -> None:
        """Raise if fine-tuning diverged, as it may with features of large norm."""
        if losses:
            last = torch.stack(losses[-(len(losses) // self.settings.epochs) :]).mean()
            if not float(last) <= RISE * float(losses[0]):
                raise ToodError(
                    f"BER diverged after task {task}: its loss was {float(losses[0]):.3g} at first and "
                    f"{float(last):.3g} in the last epoch; set ber_lr below {self.settings.lr:g}"
                )

    def _mix(self, learner: Learner, inputs: Tensor) -> Tensor:
        """Pseudo-OOD samples: pairs of images, mixed in one proportion drawn from Beta(beta, beta) (NTER)."""
        partner = learner.tensor(learner.random.permutation(len(inputs)))
        return torch.lerp(inputs[partner], inputs, float(learner.random.beta(self.settings.beta, self.settings.beta)))

    def _loss(self, logits: Tensor, columns: list[Tensor]) -> Tensor:
        """``CE_new + CE_old + w (L_in + L_out + L_in_old)``; the mixed samples come last."""
        *known, mixed = torch.split(logits, [*map(len, columns), len(columns[0])])
        loss = torch.zeros((), device=logits.device)
        for z, y in zip(known, columns, strict=True):
            loss = loss + cross_entropy(z, y) + self.settings.weight * energy_losses(z, self.settings.m_in, inside=True)
        return loss + self.settings.weight * energy_losses(mixed, self.settings.m_out, inside=False)


def energy_losses(logits: Tensor, threshold: float, inside: bool) -> Tensor:
    """``mean relu(E - m)²`` for known samples, ``mean relu(m - E)²`` for others, with ``E = -log Σ exp z``."""
    excess = -logits.logsumexp(1) - threshold
    return (excess if inside else -excess).relu().square().mean()

"""Bias correction (BiC)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from torch import Tensor

from tood.arrays import FloatArray, IntArray
from tood.learners.base import Batch, register
from tood.learners.distillation import weighted_distillation
from tood.learners.replay import ExemplarLearner
from tood.learners.settings import Above0, ExemplarSettings, From0Below1
from tood.outputs.sampling import draw_by_class

PENALTY = 0.1  # weight of offset² / 2 in the second stage, as in the authors' code


@dataclass(frozen=True)
class BiCSettings(ExemplarSettings):
    """Settings of BiC.

    Parameters
    ----------
    temperature:
        Temperature of the distillation.
    validation:
        The share of the memory that is held out from training. Each new class loses the same number of samples: at
        most this share of the smallest new class.
    batches:
        ``"mixed"``: new data and exemplars shuffled together, as in the original method; ``"halves"``: each batch of
        new data is joined by as many exemplars, as the authors of the TOOD paper ran it.
    """

    selection: Literal["herding", "random"] = "random"
    temperature: Above0 = 2.0
    validation: From0Below1 = 0.1
    batches: Literal["mixed", "halves"] = "mixed"


@register
class BiC(ExemplarLearner):
    """Bias Correction: replay and distillation, then a scale and an offset for the newest task's logits.

    Scale and offset are fitted on held-out samples. As in the authors' code, the student's logits are not corrected
    during training, the teacher's are (for its own newest task), and a correction is dropped when the next task begins,
    since distillation includes it.
    """

    name = "bic"
    title = "BiC"
    citation = 'Wu et al., "Large Scale Incremental Learning", CVPR 2019.'
    settings: BiCSettings
    distils = True
    corrects_head = True
    remembers = ("memory", "held_out")

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        s = self.settings
        held_out = max(self.least, int(s.validation * s.memory))
        self.memory = self.make_memory(s.memory - held_out, s.selection)
        self.held_out = self.make_memory(held_out, "random")

    def begin_task(self, task: int) -> None:
        """Drop the last correction and hold out samples of the new classes."""
        self.network.head.correct(slice(0), 1.0, 0.0)
        rows = self.stream.train_rows(task)
        columns = self.columns[rows]
        fewest = np.bincount(columns)[self.old :].min()
        drawn = draw_by_class(rows, columns, max(1, int(self.settings.validation * fewest)), self.random)
        self.held_out.add(drawn, self.columns[drawn])

    def training_rows(self, task: int) -> IntArray:
        """New data and, with mixed batches, exemplars; never held-out samples."""
        halves = self.settings.batches == "halves"
        rows = self.stream.train_rows(task) if halves else super().training_rows(task)
        return np.setdiff1d(rows, self.held_out.rows)

    def batches(self, rows: IntArray) -> Iterator[Batch]:
        """Mixed batches, or each batch of new data joined by as many exemplars."""
        exemplars = np.setdiff1d(self.memory.rows, self.held_out.rows)
        halves = self.settings.batches == "halves" and len(exemplars) > 0
        for new in self.shuffled(rows):
            yield new.join(self.draw(exemplars, len(new.rows))) if halves else new

    def loss(self, batch: Batch, logits: Tensor) -> Tensor:
        """Stage 1: ``λ KD + (1 - λ) CE`` with ``λ = n_old / n`` (Eqs. 1 to 3)."""
        return weighted_distillation(self, batch, logits, self.settings.temperature)

    def end_task(self, task: int) -> None:
        """Correct the new columns, then keep exemplars of the training samples."""
        if self.old:
            self.correct()
        self.keep(self.memory, np.setdiff1d(self.stream.train_rows(task), self.held_out.rows))

    def correct(self) -> None:
        """Stage 2: fit scale and offset to the logits of held-out samples, with all weights frozen."""
        rows = balanced(self.held_out.rows, self.held_out.labels)
        logits = self.outputs(rows)[1].cpu().double().numpy()
        scale, offset = fit_correction(logits, self.columns[rows], self.old)
        self.network.head.correct(slice(self.old, None), scale, offset)
        self.facts = {"scale": np.array(scale), "offset": np.array(offset)}


def balanced(rows: IntArray, labels: IntArray) -> IntArray:
    """The first rows of each class, as many as the smallest class has."""
    fewest = np.unique(labels, return_counts=True)[1].min()
    return np.concatenate([rows[labels == label][:fewest] for label in dict.fromkeys(labels.tolist())])


def fit_correction(logits: FloatArray, columns: IntArray, old: int) -> tuple[float, float]:
    """The scale α and offset β of the new columns that minimise ``CE(z') + 0.1 · β² / 2`` (Eqs. 4 and 5).

    ``z' = α z + β`` in the columns from ``old`` on and ``z`` before. The loss is convex in (α, β); the search stops at
    a gradient below 1e-8, which also bounds α if the classes are separable.

    Parameters
    ----------
    logits:
        ``[n, C]`` of held-out samples, not corrected.
    columns:
        ``[n]``, their classes.
    old:
        The first new column.
    """
    from scipy.optimize import minimize
    from scipy.special import log_softmax

    new = logits[:, old:]
    hit = columns[:, None] - old == np.arange(new.shape[1])

    def loss(theta: FloatArray) -> tuple[float, FloatArray]:
        log_p = log_softmax(np.concatenate([logits[:, :old], theta[0] * new + theta[1]], axis=1), axis=1)
        excess = np.exp(log_p[:, old:]) - hit
        gradient = np.array([np.sum(excess * new), np.sum(excess)]) / len(logits) + [0, PENALTY * theta[1]]
        return -np.mean(log_p[np.arange(len(columns)), columns]) + PENALTY * theta[1] ** 2 / 2, gradient

    scale, offset = minimize(loss, [1.0, 0.0], jac=True, method="BFGS", options={"gtol": 1e-8}).x
    return float(scale), float(offset)

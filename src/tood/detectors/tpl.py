"""TPL: likelihood ratio of each task against the other tasks, with the largest logit."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from tood.arrays import Float64Array, FloatArray, IntArray
from tood.detectors.bank import Bank, top_products
from tood.detectors.base import FitData, Rows, choice, number, register
from tood.detectors.distance import Means, whiten
from tood.detectors.statistics import Moments, unit

SMALLEST = 1e-6  # a squared Mahalanobis distance below this share of the number of dimensions counts as that


class Tasks(NamedTuple):
    """Class means and banks of the tasks, ready to score."""

    means: Means  # those of a task side by side
    banks: list[FloatArray]  # per task with samples, [N_t, D]
    seen: IntArray  # tasks with samples
    starts: IntArray  # where the means of each begin


@register
class TPL(Bank):
    """Largest over tasks of a likelihood-ratio score combined with the task's largest logit.

    For task t, let ``MD_t`` be the squared Mahalanobis distance to the nearest of its class means, ``d_t`` the squared
    distance to the k-th nearest fit feature of *other* tasks (all of unit length), and ``l_t`` its largest logit.
    ``LR_t = a_t / MD_t + d_t`` is large near the task's own classes and far from those of others. The task's score is
    ``log(exp(LR_t) + exp(b_t l_t))``. ``1 / a_t`` and ``1 / b_t`` are the means of ``1 / MD_t`` and of ``|l_t|`` over
    the task's own fit samples.

    The paper has one feature extractor per task, and uses the scores to predict the task. Here tasks share the network,
    so all have one covariance: that of the features about their class means. The paper's second calibration, which
    trains a scale and a shift per task, is left out. With one task ``d_t`` is 0. Classes and tasks without a fit sample
    are ignored. It needs the partition.

    Parameters
    ----------
    k:
        Which neighbour in other tasks.
    composition:
        ``"max"``: the soft maximum above, as in Eq. 9 of the paper; ``"min"``: the soft minimum
        ``-log(exp(-LR_t) + exp(-b_t l_t))``, as in its Algorithm 1 and in the authors' code.
    size:
        Keep at most this many fit features, a seeded sample balanced over classes, at least one per class; None keeps
        all.
    seed:
        Seed of that sample.
    """

    name = "tpl"
    title = "TPL"
    needs = frozenset({"logits", "features", "labels"})
    citation = "Lin et al., Class Incremental Learning via Likelihood Ratio Based Task Prediction, ICLR 2024"
    k: int = number(5, 1, whole=True, grid=(1, 5, 20), refit=True)
    composition: str = choice("max", "min")
    size: int | None = number(2000, 1, whole=True, none=True, refit=True)
    seed: int = number(0, 0, 1 << 63, whole=True, refit=True)

    def _fit(self, data: FitData) -> None:
        partition, moments = data.tasks(self.name), Moments.of(data)
        task_of = np.array(partition.column_tasks)
        self.tasks_ = [list(task) for task in partition]
        seen = np.flatnonzero(moments.seen)
        self.means_, self.class_tasks_ = moments.class_means[seen], task_of[seen]
        self.whitening_ = whiten(moments.within_covariance(), float(np.trace(moments.second_moment(moments.mean))))
        if self.whitening_.shape[1] == 0:
            self.whitening_ = np.eye(data.dimensions)
        super()._fit(data)
        self.bank_tasks_ = task_of[self.bank_classes]
        tasks = self._prepare(data.dtype)
        sums = np.zeros((3, len(self.tasks_)))  # of 1 / MD, of the largest logit's size, of samples
        for rows in data:
            own = task_of[rows.classes]
            each = np.arange(len(own))
            values = (self._near(rows, tasks)[each, own], np.abs(self._logits(rows)[each, own]), np.ones(len(own)))
            sums += np.stack([np.bincount(own, value, minlength=len(self.tasks_)) for value in values])
        means = sums[:2] / np.maximum(sums[2], 1)
        self.scales_ = np.where(means > 0, means, 1.0)

    def _size(self, data: FitData) -> int | None:
        return None if self.size is None else max(self.size, len(self.means_))

    def _prepare(self, dtype: np.dtype[Any]) -> Tasks:
        order = np.argsort(self.class_tasks_, kind="stable")
        seen, starts = np.unique(self.class_tasks_[order], return_index=True)
        banks = [self.bank_[self.bank_tasks_ == t].astype(dtype, copy=False) for t in seen]
        return Tasks(Means.of(self.means_[order], self.whitening_), banks, seen, starts)

    def _near(self, rows: Rows, tasks: Tasks) -> Float64Array:
        """``[n, T]``: inverse squared Mahalanobis distance to the nearest class of each task; 0 if it has none."""
        own, other = tasks.means.squared(rows.features)
        nearest = own[:, None] + np.minimum.reduceat(other, tasks.starts, axis=1)
        result = np.zeros((len(own), len(self.tasks_)))
        result[:, tasks.seen] = 1 / np.maximum(nearest, SMALLEST * self.means_.shape[1])
        return result

    def _logits(self, rows: Rows) -> Float64Array:
        """``[n, T]``: the largest logit of each task."""
        columns = np.concatenate(self.tasks_)
        starts = np.cumsum([0, *map(len, self.tasks_[:-1])])
        return np.maximum.reduceat(rows.logits[:, columns], starts, axis=1).astype(np.float64)

    def _far(self, rows: Rows, tasks: Tasks) -> Float64Array:
        """``[n, T]``: squared distance to the k-th nearest fit feature of other tasks; 0 if there is none."""
        queries = unit(rows.features)
        result = np.zeros((len(queries), len(self.tasks_)))
        if len(tasks.seen) < 2:
            return result
        cosines = [top_products(queries, bank, min(self.k, len(bank))) for bank in tasks.banks]
        for place, t in enumerate(tasks.seen):
            others = np.concatenate(cosines[:place] + cosines[place + 1 :], axis=1)
            last = others.shape[1] - min(self.k, others.shape[1])
            result[:, t] = np.partition(others, last, axis=1)[:, last]
        return 2 - 2 * result

    def _score(self, rows: Rows, prepared: Tasks) -> FloatArray:
        near, logit = self.scales_
        ratio = self._near(rows, prepared) / near + self._far(rows, prepared)
        logits = self._logits(rows) / logit
        composed = np.logaddexp(ratio, logits) if self.composition == "max" else -np.logaddexp(-ratio, -logits)
        return composed[:, prepared.seen].max(axis=1)

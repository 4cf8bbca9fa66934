"""OOD metrics as ``torchmetrics.Metric``: correct for scores of any range, synchronised across processes.

torchmetrics' own ``BinaryAUROC`` passes scores outside [0, 1] through a sigmoid first; in float32 every energy above 17
becomes 1, and the AUROC is computed from ties. These classes pass the scores unchanged to
:mod:`tood.metrics`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tood import metrics
from tood.errors import ToodError, UnknownNameError
from tood.integrations.adapter import peer
from tood.metrics import Trajectory
from tood.metrics.detection import Method
from tood.metrics.trajectory import Definition

with peer("torchmetrics", '"tood[torchmetrics]"', "tood.integrations.torchmetrics"):
    import torch
    from torchmetrics import Metric
    from torchmetrics.utilities import dim_zero_cat

__all__ = ["AUROC", "AUPRIn", "AUPROut", "FPRAtIDRecall", "FPRAtOODRecall", "TrajectoryMetric"]

METRICS = ("auroc", "fpr_at_id_recall", "fpr_at_ood_recall", "aupr_in", "aupr_out")
FUNCTIONS: dict[str, Callable[..., float]] = {name: getattr(metrics, name) for name in METRICS}
NO_SCORES = torch.empty(0, dtype=torch.float64)


class _Scores(Metric):
    """Keeps all scores, because no OOD metric is a mean over batches."""

    is_differentiable = False
    full_state_update = False

    def __init__(self, empty: dict[str, torch.Tensor], **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._empty = empty  # each state without samples
        for name in empty:
            self.add_state(name, default=[], dist_reduce_fx="cat")

    def _keep(self, name: str, values: torch.Tensor) -> None:
        getattr(self, name).append(values)

    def _sync_dist(self, *args: Any, **kwargs: Any) -> None:
        """Synchronise; a process without samples contributes none, and the others do not hang."""
        for name, empty in self._empty.items():
            if not getattr(self, name):
                self._keep(name, empty.to(self.device))
        super()._sync_dist(*args, **kwargs)

    def _all(self, name: str) -> torch.Tensor:
        found = getattr(self, name)
        return dim_zero_cat(found) if len(found) else self._empty[name]


class _TwoSets(_Scores):
    """A metric of ID scores against OOD scores."""

    _function: Callable[..., float]

    def __init__(self, options: dict[str, Any] | None = None, **kwargs: Any) -> None:
        super().__init__({"id_scores": NO_SCORES, "ood_scores": NO_SCORES}, **kwargs)
        self._options = options or {}

    def update(self, scores: torch.Tensor, in_distribution: torch.Tensor | bool) -> None:
        """Add a batch.

        Parameters
        ----------
        scores:
            ``[n]``, higher = in-distribution, of any range.
        in_distribution:
            ``[n]``, true or 1 for ID samples, false or 0 for OOD; or one of them for the whole batch.
        """
        scores = _checked(scores)
        inside = _inside(in_distribution, scores)
        self._keep("id_scores", scores[inside])
        self._keep("ood_scores", scores[~inside])

    def compute(self) -> torch.Tensor:
        """The metric as a float64 scalar, equal to the function of :mod:`tood.metrics` on all scores."""
        value = type(self)._function(self._all("id_scores"), self._all("ood_scores"), **self._options)
        return torch.tensor(value, dtype=torch.float64)


class AUROC(_TwoSets):
    """Area under the ROC curve of ID against OOD scores, by ranks.

    Examples
    --------
    >>> import torch
    >>> metric = AUROC()
    >>> metric.update(torch.tensor([31.0, 32.0, 29.0]), torch.tensor([True, True, False]))
    >>> metric.update(torch.tensor([30.5]), False)
    >>> float(metric.compute())
    1.0
    """

    higher_is_better = True
    _function = staticmethod(metrics.auroc)


class _FPR(_TwoSets):
    higher_is_better = False

    def __init__(self, recall: float = 0.95, **kwargs: Any) -> None:
        super().__init__({"recall": recall}, **kwargs)


class FPRAtIDRecall(_FPR):
    """Share of OOD accepted at the threshold that accepts ``recall`` of ID."""

    _function = staticmethod(metrics.fpr_at_id_recall)


class FPRAtOODRecall(_FPR):
    """Share of ID rejected at the threshold that rejects ``recall`` of OOD, as OpenOOD computes FPR@95."""

    _function = staticmethod(metrics.fpr_at_ood_recall)


class _AUPR(_TwoSets):
    higher_is_better = True

    def __init__(self, method: Method = "average_precision", **kwargs: Any) -> None:
        super().__init__({"method": method}, **kwargs)


class AUPRIn(_AUPR):
    """Area under the precision-recall curve with ID as the positive class."""

    _function = staticmethod(metrics.aupr_in)


class AUPROut(_AUPR):
    """Area under the precision-recall curve with OOD as the positive class."""

    _function = staticmethod(metrics.aupr_out)


class TrajectoryMetric(_Scores):
    """A metric along a stream: its average over steps and tasks (Avg AUROC) and its average forgetting (D_avg).

    Parameters
    ----------
    metric:
        The metric of each step, task and OOD set: ``"auroc"``, ``"fpr_at_id_recall"``, ``"fpr_at_ood_recall"``,
        ``"aupr_in"`` or ``"aupr_out"``.
    definition:
        Of forgetting, as for :meth:`tood.Trajectory.forgetting`.

    Examples
    --------
    >>> import torch
    >>> metric = TrajectoryMetric()
    >>> for step in range(2):
    ...     metric.update(torch.tensor([2.0, 3.0]), torch.tensor([0, step]), step)
    ...     metric.update(torch.tensor([2.5, 1.0]), torch.tensor([-1, -1]), step)
    >>> {name: float(value) for name, value in metric.compute().items()}
    {'average': 0.75, 'average_forgetting': 0.25}
    """

    higher_is_better = None

    def __init__(self, metric: str = "auroc", definition: Definition = "at_learning", **kwargs: Any) -> None:
        super().__init__({"scores": NO_SCORES, "places": torch.empty(0, 3, dtype=torch.int64)}, **kwargs)
        if metric not in FUNCTIONS:
            raise UnknownNameError("metric", metric, FUNCTIONS)
        self.metric = metric
        self.definition = definition

    def update(self, scores: torch.Tensor, tasks: torch.Tensor | int, step: int, ood_set: int = 0) -> None:
        """Add a batch.

        Parameters
        ----------
        scores:
            ``[n]``, higher = in-distribution.
        tasks:
            ``[n]``, the task of each ID sample; -1 for an OOD sample. Or one number for the whole batch.
        step:
            The step whose network made the scores: the number of the last task learned.
        ood_set:
            The number of the OOD set that the OOD samples belong to, from 0.
        """
        scores = _checked(scores)
        task = _per_sample("tasks", tasks, scores).to(torch.int64)
        if step < 0 or ood_set < 0 or bool(((task < -1) | (task > step)).any()):
            raise ToodError(f"tasks: expected 0 to the step {step}, or -1 for OOD, found {sorted(set(task.tolist()))}")
        self._keep("scores", scores)
        self._keep("places", torch.stack([torch.full_like(task, step), task, torch.full_like(task, ood_set)], dim=1))

    def compute(self) -> dict[str, torch.Tensor]:
        """``average`` and ``average_forgetting`` (of more than one step), float64 scalars."""
        trajectory = self.trajectory()
        found = {"average": trajectory.average()}
        if len(trajectory) > 1:
            found["average_forgetting"] = trajectory.average_forgetting(self.definition)
        return {name: torch.tensor(value, dtype=torch.float64) for name, value in found.items()}

    def trajectory(self) -> Trajectory:
        """All values ``[T, T, D]``."""
        scores, places = self._all("scores").cpu().numpy(), self._all("places").cpu().numpy()
        if not len(scores):
            raise ToodError("scores: none yet; call update first")
        (steps, _, sets), function = places.max(axis=0) + 1, FUNCTIONS[self.metric]
        values = np.full((steps, steps, sets), np.nan)
        for t in range(steps):
            at = places[:, 0] == t
            for d in range(sets):
                ood = scores[at & (places[:, 1] == -1) & (places[:, 2] == d)]
                for i in range(t + 1):
                    own = scores[at & (places[:, 1] == i)]
                    if not (len(own) and len(ood)):
                        missing = f"task {i}" if len(ood) else f"OOD set {d}"
                        raise ToodError(f"scores: none of {missing} at step {t}; update every step with all of them")
                    values[t, i, d] = function(own, ood)
        return Trajectory(values)


def _checked(scores: torch.Tensor) -> torch.Tensor:
    """Scores ``[n]`` in double precision, because processes can only gather states of one precision."""
    if not isinstance(scores, torch.Tensor) or scores.ndim != 1:
        found = tuple(scores.shape) if isinstance(scores, torch.Tensor) else type(scores).__name__
        raise ToodError(f"scores: expected a tensor with one axis, found {found}")
    scores = scores.detach()
    if not bool(torch.isfinite(scores).all()):
        raise ToodError("scores: expected finite numbers, found NaN or infinity")
    return scores.float() if scores.device.type == "mps" else scores.double()  # MPS has no double precision


def _inside(marks: Any, scores: torch.Tensor) -> torch.Tensor:
    """``[n]``: whether each sample is in-distribution."""
    values = _per_sample("in_distribution", marks, scores)
    if values.dtype != torch.bool and bool(((values != 0) & (values != 1)).any()):
        found = ", ".join(map(str, sorted(set(values.tolist()))[:5]))
        raise ToodError(f"in_distribution: expected true or 1 for ID, false or 0 for OOD, found {found}")
    return values.to(torch.bool)


def _per_sample(name: str, values: Any, scores: torch.Tensor) -> torch.Tensor:
    """``[n]``: one whole number or bool per score; a single one holds for all."""
    given: torch.Tensor = torch.as_tensor(values, device=scores.device)
    if given.ndim and given.shape != scores.shape:
        raise ToodError(f"{name}: expected one value per score, {len(scores)}, found shape {tuple(given.shape)}")
    if given.numel() and (given.is_floating_point() or given.is_complex()):
        raise ToodError(f"{name}: expected whole numbers, found {given.dtype}")
    return given.expand_as(scores)

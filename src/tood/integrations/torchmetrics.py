"""OOD metrics as ``torchmetrics.Metric``: correct for scores of any range, synchronised across processes.

torchmetrics' own ``BinaryAUROC`` passes scores outside [0, 1] through a sigmoid first; in float32 every energy above 17
becomes 1, and the AUROC is computed from ties. These classes pass the scores unchanged to
:mod:`tood.metrics`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tood import metrics
from tood.errors import ToodError
from tood.integrations.adapter import peer
from tood.metrics.comparison import Method

with peer("torchmetrics", '"tood[torchmetrics]"', "tood.integrations.torchmetrics"):
    import torch
    from torchmetrics import Metric
    from torchmetrics.utilities import dim_zero_cat

__all__ = ["AUROC", "AUPRIn", "AUPROut", "FPRAtIDRecall", "FPRAtOODRecall"]


class _TwoSets(Metric):
    """A metric of ID scores against OOD scores; it keeps all of them, because no OOD metric is a mean over batches."""

    is_differentiable = False
    full_state_update = False
    higher_is_better = True
    rows: list[torch.Tensor]  # score and 1 for ID, 0 for OOD, [n, 2] per batch
    _function: Callable[..., float]

    def __init__(self, options: dict[str, Any] | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.add_state("rows", default=[], dist_reduce_fx="cat")
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
        if not isinstance(scores, torch.Tensor) or scores.ndim != 1 or not bool(scores.isfinite().all()):
            raise ToodError("scores: expected a tensor [n] of finite numbers")
        marks = torch.as_tensor(in_distribution, device=scores.device)
        if marks.shape not in ((), scores.shape) or not set(marks.flatten().tolist()) <= {0, 1}:
            raise ToodError(
                "in_distribution: expected true or 1 for ID, false or 0 for OOD, one for all scores or one per score"
            )
        # One precision, because processes can only gather states of one; MPS has no double precision.
        precision = torch.float32 if scores.device.type == "mps" else torch.float64
        self.rows.append(torch.stack([scores.detach().to(precision), marks.expand_as(scores).to(precision)], dim=1))

    def _sync_dist(self, *args: Any, **kwargs: Any) -> None:
        """Synchronise; a process without samples contributes none, and the others do not hang."""
        if not self.rows:
            self.rows.append(torch.empty(0, 2, dtype=torch.float64, device=self.device))
        super()._sync_dist(*args, **kwargs)

    def compute(self) -> torch.Tensor:
        """The metric as a float64 scalar, equal to the function of :mod:`tood.metrics` on all scores."""
        if not len(self.rows):
            raise ToodError("scores: none yet; call update first")
        scores, inside = dim_zero_cat(self.rows).cpu().T
        value = type(self)._function(scores[inside == 1], scores[inside == 0], **self._options)
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

    _function = staticmethod(metrics.auroc)


class FPRAtIDRecall(_TwoSets):
    """Share of OOD accepted at the threshold that accepts ``recall`` of ID."""

    higher_is_better = False
    _function = staticmethod(metrics.fpr_at_id_recall)

    def __init__(self, recall: float = 0.95, **kwargs: Any) -> None:
        super().__init__({"recall": recall}, **kwargs)


class FPRAtOODRecall(FPRAtIDRecall):
    """Share of ID rejected at the threshold that rejects ``recall`` of OOD, as OpenOOD computes FPR@95."""

    _function = staticmethod(metrics.fpr_at_ood_recall)


class AUPRIn(_TwoSets):
    """Area under the precision-recall curve with ID as the positive class."""

    _function = staticmethod(metrics.aupr_in)

    def __init__(self, method: Method = "average_precision", **kwargs: Any) -> None:
        super().__init__({"method": method}, **kwargs)


class AUPROut(AUPRIn):
    """Area under the precision-recall curve with OOD as the positive class."""

    _function = staticmethod(metrics.aupr_out)

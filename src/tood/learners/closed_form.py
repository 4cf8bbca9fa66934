"""Learners without gradient steps: one pass over the features of each task, then the head in closed form.

The backbone never changes, so nothing is forgotten and nothing is replayed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from lightning_fabric import Fabric
from torch import Tensor
from torch.linalg import LinAlgError  # type: ignore[attr-defined]
from torch.nn.functional import pad

from tood.errors import ToodError
from tood.learners.base import Learner
from tood.learners.progress import Report
from tood.models import Network
from tood.models.tops import add_top
from tood.streams import Stream


@dataclass(frozen=True)
class ClosedFormSettings:
    """Settings of a learner without gradient steps."""

    epochs = 1  # fixed
    batch_size = 256


class ClosedForm(Learner):
    """A learner that overrides :meth:`absorb` and :meth:`solve` in place of a loss.

    Statistics are float64 and part of the checkpoint, so that a run can resume after any task.
    """

    settings: ClosedFormSettings  # type: ignore[assignment]
    closed_form = True
    regulariser = ""  # the setting that keeps the matrix of `solve` regular, if there is one

    def __init__(
        self, stream: Stream, network: Network, settings: ClosedFormSettings, seed: int, fabric: Fabric
    ) -> None:
        top = self.top(settings, seed)
        super().__init__(stream, add_top(network, **top) if top else network, settings, seed, fabric)  # type: ignore[arg-type]
        self.untransformed = network.to(fabric.device)

    @property
    def exact_device(self) -> torch.device:
        """Where float64 is computed: the learner's device, or the CPU in place of Apple's GPU, which has no float64."""
        return torch.device("cpu") if self.fabric.device.type == "mps" else self.fabric.device

    @classmethod
    def top(cls, settings: Any, seed: int) -> Mapping[str, Any]:
        """The fixed transform of features, as :func:`tood.models.tops.add_top` takes it; empty for none."""
        return {}

    def absorb(self, features: Tensor, columns: Tensor) -> None:
        """Add the samples of a task to the statistics: features ``[n, D]`` before the transform, columns ``[n]``."""
        raise NotImplementedError

    def solve(self) -> tuple[Tensor, Tensor]:
        """Weight ``[C, D]`` and bias ``[C]`` of the head."""
        raise NotImplementedError

    def _train(self, task: int, path: Path | None, progress: Report | None, epoch: int | None, momentum: Any) -> None:
        """One pass over the task; it is not resumed in the middle."""
        self._open(task)
        rows = self.training_rows(task)
        features = self.outputs(rows, network=self.untransformed)[0].to(self.exact_device)
        self.absorb(features, torch.from_numpy(self.columns[rows]).to(self.exact_device))
        try:
            weight, bias = self.solve()
        except LinAlgError as error:
            raise ToodError(f"{self.regulariser}: leaves the covariance of the features singular; raise it") from error
        with torch.no_grad():
            self.network.head.weight.copy_(weight.float())
            self.network.head.bias.copy_(bias.float())


class ClassMoments:
    """Count and mean of every class, and the scatter matrix within classes; exact for any order of samples.

    Parameters
    ----------
    dim:
        D, the number of features.
    device:
        Device of the tensors, which are float64.
    scatter:
        Keep the scatter matrix ``[D, D]``, the sum of squares within classes.
    """

    def __init__(self, dim: int, device: torch.device | str = "cpu", scatter: bool = True) -> None:
        self.count = torch.zeros(0, dtype=torch.float64, device=device)
        self.mean = torch.zeros(0, dim, dtype=torch.float64, device=device)
        self.scatter = torch.zeros(*(dim, dim) if scatter else (0, 0), dtype=torch.float64, device=device)

    def add(self, features: Tensor, columns: Tensor) -> None:
        """Add samples ``[n, D]`` with the column of each one's class ``[n]``."""
        wider = max(0, int(columns.max()) + 1 - len(self.count))
        self.count, self.mean = pad(self.count, (0, wider)), pad(self.mean, (0, 0, 0, wider))
        for c in torch.unique(columns):
            x = features[columns == c].double()
            n, total = len(x), len(x) + self.count[c]
            mean, shift = x.mean(0), x.mean(0) - self.mean[c]
            if len(self.scatter):
                centred = x - mean
                self.scatter += centred.T @ centred
                if self.count[c] > 0:
                    self.scatter += torch.outer(shift, shift) * (self.count[c] * n / total)
            self.mean[c] += shift * (n / total)
            self.count[c] = total

    def covariance(self) -> Tensor:
        """The covariance within classes, pooled: ``Σ_c Σ_{i in c} (x_i - m_c)(x_i - m_c)ᵀ / n``."""
        return self.scatter / self.count.sum()

    def state_dict(self) -> dict[str, Tensor]:
        """Plain tensors, for a checkpoint."""
        return {"count": self.count, "mean": self.mean, "scatter": self.scatter}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """The inverse of :meth:`state_dict`."""
        for name, array in state.items():
            setattr(self, name, torch.from_numpy(array).to(self.mean.device))

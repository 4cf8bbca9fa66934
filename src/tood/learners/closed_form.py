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
        # Where float64 is computed: on the CPU in place of Apple's GPU, which has no float64.
        self.exact_device = torch.device("cpu") if fabric.device.type == "mps" else fabric.device

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

    def _train(self, task: int, path: Path | None, progress: Report | None, epoch: int | None, state: Any) -> None:
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

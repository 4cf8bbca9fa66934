"""The compiled score: everything a score needs to be evaluated, and nothing that is computed again.

Every variant of TOOD is compiled to :class:`Channels` once, in ``fit``. Scoring, decisions, monitors, ONNX graphs and
torch modules only evaluate it, and files hold it, so a later version of a rule never changes a file's scores.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from tood.arrays import ArrayT, Float64Array, back, is_finite
from tood.energy import energy_blocks, largest_with_lead, logsumexp, score_dtype
from tood.errors import ToodError
from tood.partition import Partition

__all__ = ["Channels"]


class Channels(NamedTuple):
    """``S = gain · (u₁ + margin · (u₁ - u₂)) + energy · E + offset``, where u₁ ≥ u₂ are the largest of ``u_t``.

    ``u_t = (E_t - location_t) / scale_t`` is the normalised energy of task t, and E is the energy of all columns.
    """

    partition: Partition
    location: Float64Array  # [N]
    scale: Float64Array  # [N]
    margin: float = 0.0
    gain: float = 1.0
    offset: float = 0.0
    energy: float = 0.0

    def evaluate(self, logits: ArrayT, assign: bool = True) -> tuple[ArrayT, ArrayT]:
        """Score ``[n]`` and winning task ``[n]`` of logits ``[n, C]``.

        Without ``assign`` the tasks are empty, which is faster.
        """
        margin = self.margin if len(self.location) > 1 else 0.0
        scores = np.empty(len(logits), dtype=score_dtype(logits))
        tasks = np.empty(len(logits) if assign else 0, dtype=np.int64)
        for rows, values in energy_blocks(logits, self.partition):
            shift = self.offset + (self.energy * logsumexp(values.T) if self.energy else 0.0)
            values -= self.location[:, None].astype(values.dtype)
            values /= self.scale[:, None].astype(values.dtype)
            top, winners = largest_with_lead(values, margin, assign)
            scores[rows] = top.astype(np.float64) * self.gain + shift
            if assign:
                tasks[rows] = winners
        if not is_finite(scores):
            raise ToodError(f"logits: the score of row {np.isfinite(scores).argmin()} overflows {scores.dtype}")
        return back(scores, like=logits), back(tasks, like=logits)

    def arrays(self) -> dict[str, npt.NDArray[Any]]:
        """The compiled score as arrays of a file."""
        return {
            "location": self.location,
            "scale": self.scale,
            "units": np.array([self.margin, self.gain, self.offset, self.energy]),
            "columns": np.concatenate([np.asarray(task, dtype=np.int64) for task in self.partition]),
            "sizes": np.array([len(task) for task in self.partition], dtype=np.int64),
        }

    @classmethod
    def from_arrays(cls, arrays: dict[str, npt.NDArray[Any]]) -> Channels:
        """The inverse of :meth:`arrays`."""
        partition = Partition(np.split(arrays["columns"], np.cumsum(arrays["sizes"])[:-1]))
        return cls(partition, arrays["location"], arrays["scale"], *arrays["units"].tolist())

"""A fitted calibrator as a torch module without Python in its path: for ``torch.export``, ONNX and compilers."""

from __future__ import annotations

from typing import Any

import numpy as np

from tood.calibration import TOOD
from tood.errors import MissingDependencyError

try:
    import torch
except ImportError as error:
    raise MissingDependencyError("torch", "torch", "ScorerModule") from error

__all__ = ["ScoredNetwork", "ScorerModule"]


class ScorerModule(torch.nn.Module):
    """``cal.score`` and ``cal.assign`` as a module: static shapes but for the batch, nothing read back to the host.

    It does not look for NaN or infinite logits as ``cal.score`` does: such a row gives a score that is not finite.

    Parameters
    ----------
    cal:
        A fitted :class:`~tood.TOOD`; later changes to it do not reach the module.

    Examples
    --------
    >>> import numpy as np
    >>> labels = np.repeat(np.arange(4), 30)
    >>> logits = np.random.default_rng(0).normal(size=(120, 4)) + 6 * np.eye(4)[labels]
    >>> cal = TOOD([[0, 1], [2, 3]]).fit(logits, labels)
    >>> score, task = ScorerModule(cal)(torch.from_numpy(logits))
    >>> bool(np.allclose(score, cal.score(logits)))
    True
    """

    def __init__(self, cal: TOOD) -> None:
        super().__init__()
        channels = cal.channels()
        partition = cal.partition_
        order, _, groups = partition.layout
        self.groups = [(start, size, len(members)) for start, size, members in groups]
        self.margin = float(cal.margin) if len(partition) > 1 else 0.0
        self.gain, self.offset = float(channels.gain), float(channels.offset)
        places = np.argsort(np.concatenate([members for _, _, members in groups]))
        for name, values in {
            "order": order,
            "places": places,
            "location": np.asarray(channels.location, dtype=np.float64),
            "scale": np.asarray(channels.scale, dtype=np.float64),
        }.items():
            self.register_buffer(name, torch.from_numpy(np.array(values)))

    def forward(self, logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """``[n, C]`` to the score ``[n]`` and the winning task ``[n]``."""
        buffers: dict[str, Any] = dict(self.named_buffers())
        if logits.dtype != torch.float64:
            logits = logits.float()
        ordered = logits.index_select(1, buffers["order"])
        parts = [
            ordered[:, start : start + size * count].reshape(-1, count, size).logsumexp(2)
            for start, size, count in self.groups
        ]
        energies = torch.cat(parts, dim=1).index_select(1, buffers["places"])
        values = (energies - buffers["location"].to(energies.dtype)) / buffers["scale"].to(energies.dtype)
        best, winner = values.topk(min(2, values.shape[1]), dim=1)
        top = best[:, 0] + self.margin * (best[:, 0] - best[:, -1])
        return top * self.gain + self.offset, winner[:, 0]


class ScoredNetwork(torch.nn.Module):
    """A network and the scorer behind it.

    Parameters
    ----------
    network:
        Maps inputs to logits ``[n, C]``.
    cal:
        A fitted :class:`~tood.TOOD` for those logits.
    """

    def __init__(self, network: torch.nn.Module, cal: TOOD) -> None:
        super().__init__()
        self.network = network
        self.scorer = ScorerModule(cal)

    def forward(self, inputs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Logits ``[n, C]``, score ``[n]`` and winning task ``[n]``."""
        logits = self.network(inputs)
        return logits, *self.scorer(logits)

"""A fitted scorer as a torch module: for ``torch.export``, ONNX and compilers."""

from __future__ import annotations

import io
import json
import os
from collections.abc import Callable
from typing import Any

import numpy as np

from tood.decision.facts import description
from tood.errors import MissingDependencyError
from tood.export.onnx import Exportable, compiled
from tood.storage.files import write_atomically

try:
    import torch
except ImportError as error:
    raise MissingDependencyError("torch", "torch", "ScorerModule") from error

__all__ = ["ScoredNetwork", "ScorerModule", "export_program"]


class ScorerModule(torch.nn.Module):
    """``cal.score``, ``cal.assign`` and the decision as a torch module: only the batch size is dynamic.

    It does not check for NaN or infinite numbers as ``cal.score`` does: such a row gives a score that is not finite and
    is not accepted.

    Parameters
    ----------
    cal, alpha:
        As for :func:`tood.export.onnx.export_scorer`. Later changes to ``cal`` do not change the module.

    Examples
    --------
    >>> import numpy as np
    >>> from tood import TOOD
    >>> labels = np.repeat(np.arange(4), 30)
    >>> logits = np.random.default_rng(0).normal(size=(120, 4)) + 6 * np.eye(4)[labels]
    >>> cal = TOOD([[0, 1], [2, 3]]).fit(logits, labels)
    >>> score, task = ScorerModule(cal)(torch.from_numpy(logits))
    >>> bool(np.allclose(score, cal.score(logits)))
    True
    """

    order: torch.Tensor
    places: torch.Tensor
    location: torch.Tensor
    scale: torch.Tensor
    limits: torch.Tensor

    def __init__(self, cal: Exportable, alpha: float | None = None) -> None:
        super().__init__()
        channels, limits = compiled(cal, alpha)
        layout = channels.partition.layout
        self.segments = layout.segments
        self.units = (channels.margin, channels.gain, channels.offset, channels.energy)
        arrays: dict[str, Any] = {"order": layout.order, "places": layout.places}
        arrays |= {"location": channels.location, "scale": channels.scale}
        self.outputs = ["score", "task"]
        if limits is not None:
            arrays["limits"] = limits
            self.outputs.append("accept")
        for name, values in arrays.items():
            self.register_buffer(name, torch.from_numpy(np.array(values)))

    def _apply(self, fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True) -> ScorerModule:
        """Called by ``to``, ``half`` and the like: never to half precision, as rounded numbers decide otherwise."""

        def moved(tensor: torch.Tensor) -> torch.Tensor:
            result = fn(tensor)
            return tensor.to(result.device) if result.dtype in (torch.float16, torch.bfloat16) else result

        super()._apply(moved, recurse)  # type: ignore[no-untyped-call]
        return self

    def forward(self, logits: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Score ``[n]``, winning task ``[n]`` and, with a decision, accept ``[n]`` from logits ``[n, C]``."""
        logits = logits if logits.dtype == torch.float64 else logits.float()
        ordered = logits.index_select(1, self.order)
        groups = [
            ordered[:, start : start + size * tasks].reshape(-1, tasks, size).logsumexp(2)
            for start, size, tasks in self.segments
        ]
        energies = torch.cat(groups, dim=1).index_select(1, self.places)
        values = (energies - self.location.to(energies.dtype)) / self.scale.to(energies.dtype)
        best, task = values.topk(min(2, values.shape[1]), dim=1).values, values.argmax(dim=1)
        margin, gain, offset, energy = self.units
        score = gain * (best[:, 0] + margin * (best[:, 0] - best[:, -1])) + offset
        if energy:
            score = score + energy * energies.logsumexp(1)
        score = score + (0 * logits).sum(1)  # NaN if any is not finite: else TopK or an energy may hide it
        if "accept" not in self.outputs:
            return score, task
        limits = self.limits.to(score.dtype)
        return score, task, score >= (limits.index_select(0, task) if limits.ndim else limits)


def export_program(cal: Exportable, path: str | os.PathLike[str], alpha: float | None = None) -> None:
    """Write a :class:`ScorerModule` with ``torch.export.save``; ``torch.export.load(path).module()`` runs it.

    It takes float32 logits of any batch size. The file keeps rule, version, date and metadata of the score.
    """
    module = ScorerModule(cal, alpha)
    example = torch.zeros(2, len(module.order))
    program = torch.export.export(module, (example,), dynamic_shapes=({0: torch.export.Dim("batch")},))
    kept = {"tood.json": json.dumps(description(cal))}
    buffer = io.BytesIO()  # torch warns of a file whose name does not end in .pt2
    torch.export.save(program, buffer, extra_files=kept)
    write_atomically(path, lambda temporary: temporary.write_bytes(buffer.getvalue()))


class ScoredNetwork(torch.nn.Module):
    """A network followed by the scorer.

    Parameters
    ----------
    network:
        Maps inputs to logits ``[n, C]``.
    cal, alpha:
        As for :class:`ScorerModule`, fitted to the network's outputs.
    """

    def __init__(self, network: torch.nn.Module, cal: Exportable, alpha: float | None = None) -> None:
        super().__init__()
        self.network = network
        self.scorer = ScorerModule(cal, alpha)

    def forward(self, inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Logits ``[n, C]``, score ``[n]``, winning task ``[n]`` and, if decided, accept ``[n]``."""
        logits = self.network(inputs)
        return logits, *self.scorer(logits)

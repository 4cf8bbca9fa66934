"""A fitted scorer as a torch module: for ``torch.export``, ONNX and compilers."""

from __future__ import annotations

import io
import json
import os
from collections.abc import Callable
from typing import Any

import numpy as np

from tood.decision.facts import description
from tood.energy import grouped_logsumexp
from tood.errors import MissingDependencyError, ToodError
from tood.export.portable import SHORTEST, Exportable, portable
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
    cal, alpha, threshold:
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

    def __init__(self, cal: Exportable, alpha: float | None = None, threshold: float | None = None) -> None:
        super().__init__()
        parameters = portable(cal, alpha, threshold)
        nearest, channels = parameters.nearest, parameters.channels
        self.answer, self.outputs = parameters.answer, parameters.outputs
        self.reads_features = nearest is not None
        self.normalize = nearest is not None and nearest.normalize
        arrays: dict[str, Any] = {}
        if nearest:
            arrays |= {name: getattr(nearest, name) for name in ("origin", "points", "squares")}
            arrays |= {} if nearest.whitening is None else {"whitening": nearest.whitening}
            self.whitens = nearest.whitening is not None
        if channels:
            layout = channels.partition.layout
            arrays |= {"order": layout.order, "places": layout.places, "location": channels.location}
            arrays["scale"] = channels.scale
            self.channels, self.segments, self.squared = channels, layout.segments, parameters.squared
        else:  # an empty buffer cannot be saved by torch.export
            arrays["columns"] = np.asarray(parameters.columns, dtype=np.int64)
        if parameters.limits is not None:
            arrays["limits"] = parameters.limits
        for name, values in arrays.items():
            self.register_buffer(name, torch.from_numpy(np.array(values)))

    def _apply(self, fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True) -> ScorerModule:
        """Called by ``to``, ``half`` and the like: never to half precision, as rounded numbers decide otherwise."""

        def moved(tensor: torch.Tensor) -> torch.Tensor:
            result = fn(tensor)
            return tensor.to(result.device) if result.dtype in (torch.float16, torch.bfloat16) else result

        super()._apply(moved, recurse)  # type: ignore[no-untyped-call]
        return self

    def forward(self, logits: torch.Tensor, features: torch.Tensor | None = None) -> tuple[torch.Tensor, ...]:
        """Score ``[n]``, winning task ``[n]`` and, with a decision, accept ``[n]`` from logits ``[n, C]``.

        Scorers that read features take ``[n, D]`` of them too. For ``typicality``, which reads no logits, the second
        output is the logit column of the nearest class mean.
        """
        score, answer = self._score(logits, features)
        if "accept" not in self.outputs:
            return score, answer
        limits = self._buffer("limits", score)
        return score, answer, score >= (limits.index_select(0, answer) if limits.ndim else limits)

    def _score(self, logits: torch.Tensor, features: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor]:
        if not self.reads_features:
            return self._best_task(_at_least_single(logits))
        if features is None:
            raise ToodError("features: this scorer reads them; pass module(logits, features)")
        squared, point = self._nearest(_at_least_single(features))
        if self.answer == "task":
            return self._best_task(_at_least_single(logits), squared)
        return -squared.sqrt(), self._buffer("columns").index_select(0, point)

    def _best_task(
        self, logits: torch.Tensor, squared: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """``[n]`` each: the score of TOOD, plus a multiple of the squared distance if given, and the winning task."""
        ordered = logits.index_select(1, self._buffer("order"))
        energies = grouped_logsumexp(ordered, self.segments).index_select(1, self._buffer("places"))
        here = {name: self._buffer(name, energies) for name in ("location", "scale")}
        score, winner = self.channels._replace(**here).evaluate_energies(energies)
        score = score + (0 * logits).sum(1)  # NaN if any is not finite: else TopK or an energy may hide it
        return score if squared is None else score + self.squared * squared, winner

    def _nearest(self, z: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """``[n]`` each: the squared distance to the nearest point, and which point that is."""
        if self.normalize:
            z = torch.nn.functional.normalize(z, eps=SHORTEST)
        points = self._buffer("points", z)
        y = z - self._buffer("origin", z)
        if self.whitens:
            y = y @ self._buffer("whitening", z)
        point = (self._buffer("squares", z) - 2 * y @ points.T).argmin(1)  # squared distances but for ‖y‖²
        return (y - points.index_select(0, point)).square().sum(1), point

    def _buffer(self, name: str, like: torch.Tensor | None = None) -> Any:
        buffer = self.get_buffer(name)
        return buffer if like is None else buffer.to(like.dtype)


def export_program(
    cal: Exportable, path: str | os.PathLike[str], alpha: float | None = None, threshold: float | None = None
) -> None:
    """Write a :class:`ScorerModule` with ``torch.export.save``; ``torch.export.load(path).module()`` runs it.

    It takes float32 inputs of any batch size. The file keeps rule, version, date and metadata of the score.
    """
    module = ScorerModule(cal, alpha, threshold)
    inputs = portable(cal, alpha, threshold).inputs
    names = ("logits", "features") if module.reads_features else ("logits",)
    examples = tuple(torch.zeros(2, inputs.get(name, 1)) for name in names)
    shapes = tuple({0: torch.export.Dim("batch")} for _ in names)
    program = torch.export.export(module, examples, dynamic_shapes=shapes)
    kept = {"tood.json": json.dumps(description(cal))}
    buffer = io.BytesIO()  # torch warns of a file whose name does not end in .pt2
    torch.export.save(program, buffer, extra_files=kept)
    write_atomically(path, lambda temporary: temporary.write_bytes(buffer.getvalue()))


def _at_least_single(values: torch.Tensor) -> torch.Tensor:
    return values if values.dtype == torch.float64 else values.float()


class ScoredNetwork(torch.nn.Module):
    """A network followed by the scorer.

    Parameters
    ----------
    network:
        Maps inputs to logits ``[n, C]``; if the scorer reads features, as ``network.head(network.features(x))``.
    cal, alpha, threshold:
        As for :class:`ScorerModule`, fitted to the network's outputs.
    """

    def __init__(
        self, network: torch.nn.Module, cal: Exportable, alpha: float | None = None, threshold: float | None = None
    ) -> None:
        super().__init__()
        self.network: Any = network
        self.scorer = ScorerModule(cal, alpha, threshold)
        if self.scorer.reads_features and not all(callable(getattr(network, n, None)) for n in ("features", "head")):
            raise ToodError(
                f"network: the scorer reads features; expected a network with features(x) and head, such as "
                f"tood.models.Network.wrap(network), found {type(network).__name__}"
            )

    def forward(self, inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Logits ``[n, C]``, score ``[n]``, winning task (or nearest class) ``[n]`` and, if decided, accept ``[n]``."""
        if not self.scorer.reads_features:
            logits = self.network(inputs)
            return logits, *self.scorer(logits)
        features = self.network.features(inputs)
        logits = self.network.head(features)
        return logits, *self.scorer(logits, features)

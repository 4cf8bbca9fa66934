"""Export to ONNX: the scorer alone, small and without torch, or network and scorer in one file."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

from tood.calibration import Channels
from tood.decision.facts import description
from tood.errors import MissingDependencyError, ToodError
from tood.export.portable import SHORTEST, Exportable, Nearest, Portable, portable
from tood.partition import Partition
from tood.storage.files import write_atomically

if TYPE_CHECKING:
    import torch

__all__ = ["Graph", "export_network", "export_scorer"]

OPSET = 18


def export_scorer(
    cal: Exportable,
    path: str | os.PathLike[str],
    dtype: Literal["float32", "float64"] = "float32",
    alpha: float | None = None,
    threshold: float | None = None,
) -> None:
    """Write a graph from ``logits [batch, C]`` to ``score [batch]`` and ``task [batch]``, the winning one.

    With ``alpha`` or ``threshold`` there is a third output, ``accept [batch]``, the decision. The detector
    ``tood_joint`` reads ``features [batch, D]`` too, unless it was fitted without; ``typicality`` reads them alone and
    gives ``class [batch]``, the logit column of the nearest class mean, in place of the task. The graph does not check
    for NaN or infinite numbers as ``cal.score`` does; such rows are not accepted.

    Parameters
    ----------
    cal:
        A fitted :class:`~tood.TOOD`, or a fitted detector: ``typicality`` or ``tood_joint``; or a
        :class:`~tood.decision.Conformal` around one.
    path:
        The ``.onnx`` file to write.
    dtype:
        The precision of the inputs, and of every step.
    alpha:
        With a ``Conformal``: decide as ``decide(logits, alpha)`` does. Not for randomised ties or cross-conformal.
    threshold:
        Accept scores that reach this number, such as ``conformal.risk_threshold(0.05)``, in place of ``alpha``.

    Examples
    --------
    >>> import tempfile
    >>> from tood import TOOD
    >>> labels = np.repeat(np.arange(4), 30)
    >>> logits = np.random.default_rng(0).normal(size=(120, 4)) + 6 * np.eye(4)[labels]
    >>> export_scorer(TOOD([[0, 1], [2, 3]]).fit(logits, labels), tempfile.mkdtemp() + "/scorer.onnx")
    """
    parameters = portable(cal, alpha, threshold)
    graph = Graph(dtype)
    graph.score(parameters)
    texts = {f"tood.{name}": text for name, text in description(cal).items()}
    graph.write(path, parameters.inputs, parameters.outputs, texts)


class Graph:
    """Nodes and constants, each named after its number."""

    def __init__(self, dtype: str) -> None:
        try:
            import onnx  # noqa: F401
        except ImportError as error:
            raise MissingDependencyError("onnx", "onnx", "exporting the scorer") from error
        if dtype not in ("float32", "float64"):
            raise ToodError(f"dtype: expected 'float32' or 'float64', found {dtype!r}")
        self.dtype = np.dtype(dtype)
        self.nodes: list[Any] = []
        self.constants: list[Any] = []

    def add(
        self, operator: str, *inputs: str, outputs: int = 1, names: list[str] | None = None, **attributes: Any
    ) -> Any:
        """Add a node; returns the name of its output, or names."""
        from onnx import helper

        names = names or [f"{operator}_{len(self.nodes)}_{k}" for k in range(outputs)]
        self.nodes.append(helper.make_node(operator, list(inputs), names, **attributes))
        return names[0] if len(names) == 1 else names

    def constant(self, values: npt.ArrayLike, dtype: Any = None) -> str:
        """Add numbers, by default in the graph's precision; returns their name."""
        from onnx import numpy_helper

        name = f"constant_{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.asarray(values, dtype=dtype or self.dtype), name))
        return name

    def indices(self, *values: int) -> str:
        """Add whole numbers; returns their name."""
        return self.constant(values, np.int64)

    def write(
        self, path: str | os.PathLike[str], inputs: dict[str, int], outputs: Iterable[str], texts: dict[str, str]
    ) -> None:
        """Write the graph with its inputs (and their columns), outputs and metadata."""
        from onnx import TensorProto, checker, helper

        kind = TensorProto.FLOAT if self.dtype == np.float32 else TensorProto.DOUBLE
        kinds = {"score": kind, "accept": TensorProto.BOOL}
        make = helper.make_tensor_value_info
        given = [make(name, kind, ["batch", columns]) for name, columns in inputs.items()]
        found = [make(name, kinds.get(name, TensorProto.INT64), ["batch"]) for name in outputs]
        built = helper.make_graph(self.nodes, "tood", given, found, initializer=self.constants)
        opset = [helper.make_opsetid("", OPSET)]
        model = helper.make_model(built, producer_name="tood", opset_imports=opset, ir_version=8)
        helper.set_model_props(model, texts)
        checker.check_model(model, full_check=True)
        write_atomically(path, lambda temporary: temporary.write_bytes(model.SerializeToString()))

    def energies(self, partition: Partition) -> str:
        """``[batch, N]``: each segment stabilised by its own maximum, as in :mod:`tood.energy`."""
        layout = partition.layout
        logits = "logits"
        if not layout.in_order:
            logits = self.add("Gather", "logits", self.constant(layout.order, np.int64), axis=1)
        energies = []
        for start, size, tasks in layout.segments:
            end = self.indices(start + size * tasks)
            segment = self.add("Slice", logits, self.indices(start), end, self.indices(1))
            segment = self.add("Reshape", segment, self.indices(-1, tasks, size))
            top = self.add("ReduceMax", segment, self.indices(2), keepdims=1)
            total = self.add("ReduceSum", self.add("Exp", self.add("Sub", segment, top)), self.indices(2), keepdims=0)
            top = self.add("Squeeze", top, self.indices(2))
            energies.append(self.add("Add", self.add("Log", total), top))
        joined = self.add("Concat", *energies, axis=1)
        return str(self.add("Gather", joined, self.constant(layout.places, np.int64), axis=1))

    def nearest(self, nearest: Nearest) -> tuple[str, str]:
        """``[batch]`` each: the squared distance to the nearest point, and which point that is."""
        z = "features"
        if nearest.normalize:
            length = self.add("ReduceL2", z, self.indices(1), keepdims=1)
            z = self.add("Div", z, self.add("Max", length, self.constant(SHORTEST)))
        y = self.add("Sub", z, self.constant(nearest.origin))
        if nearest.whitening is not None:
            y = self.add("MatMul", y, self.constant(nearest.whitening))
        points, squares = self.constant(nearest.points), self.constant(nearest.squares)
        other = self.add("Gemm", y, points, squares, alpha=-2.0, transB=1)  # squared distances but for ‖y‖²
        point = self.add("ArgMin", other, axis=1, keepdims=0)
        apart = self.add("Sub", y, self.add("Gather", points, point, axis=0))
        return self.add("ReduceSumSquare", apart, self.indices(1), keepdims=0), point

    def normalised(self, values: str, channels: Channels) -> str:
        """``[batch, N]``: :meth:`tood.calibration.Channels.normalised`."""
        u = self.add("Sub", values, self.constant(channels.location))
        return str(self.add("Div", u, self.constant(channels.scale)))

    def score(self, parameters: Portable) -> None:
        """All nodes from the inputs to the outputs."""
        squared, point = self.nearest(parameters.nearest) if parameters.nearest else ("", "")
        if parameters.channels:
            self.best_task(parameters.channels, squared, parameters.squared)
        else:
            self.nearest_class(parameters, squared, point)
        if parameters.limits is not None:
            limit = self.constant(parameters.limits)
            if parameters.limits.ndim:
                limit = self.add("Gather", limit, parameters.answer, axis=0)
            self.add("GreaterOrEqual", "score", limit, names=["accept"])

    def nearest_class(self, parameters: Portable, squared: str, point: str) -> None:
        """Minus the distance to the nearest class mean, and its class."""
        self.add("Neg", self.add("Sqrt", squared), names=["score"])
        self.add("Gather", self.constant(parameters.columns, np.int64), point, axis=0, names=["class"])

    def best_task(self, channels: Channels, squared: str, weight: float) -> None:
        """The maximum over tasks, its lead, and its task; ``squared``: squared distances, or empty if not read."""
        energies = self.energies(channels.partition)
        values = self.normalised(energies, channels)
        best, winner = self.add("TopK", values, self.indices(min(2, len(channels.partition))), outputs=2, axis=1)
        first, last, axis = self.indices(0), self.indices(-1), self.indices(1)
        top = self.add("Squeeze", self.add("Gather", best, first, axis=1), axis)
        second = self.add("Squeeze", self.add("Gather", best, last, axis=1), axis)
        lead = self.add("Mul", self.add("Sub", top, second), self.constant(channels.margin))
        zero = self.add("ReduceSum", self.add("Mul", "logits", self.constant(0.0)), axis, keepdims=0)
        lead = self.add("Add", lead, zero)  # NaN if any is not finite: else TopK or an energy may hide it
        scaled = self.add("Mul", self.add("Add", top, lead), self.constant(channels.gain))
        if channels.energy:
            total = self.add("ReduceLogSumExp", energies, axis, keepdims=0)
            scaled = self.add("Add", scaled, self.add("Mul", total, self.constant(channels.energy)))
        if squared:
            scaled = self.add("Add", scaled, self.add("Mul", squared, self.constant(weight)))
        self.add("Add", scaled, self.constant(channels.offset), names=["score"])
        self.add("Squeeze", self.add("Gather", winner, first, axis=1), axis, names=["task"])


def export_network(
    network: torch.nn.Module,
    cal: Exportable,
    path: str | os.PathLike[str],
    example_input: torch.Tensor,
    alpha: float | None = None,
    threshold: float | None = None,
) -> None:
    """Write network and scorer as one graph: from an input batch to ``logits``, ``score``, ``task`` and ``accept``.

    ``accept`` is there with ``alpha`` or ``threshold``. With ``typicality`` the third output is ``class``, as in
    :func:`export_scorer`.

    Parameters
    ----------
    network:
        Maps inputs ``[batch, ...]`` to logits ``[batch, C]``; it is exported in evaluation mode. If
        ``cal`` reads features it must have ``features`` and ``head``, as :class:`tood.models.Network` has.
    cal, alpha, threshold:
        As for :func:`export_scorer`, fitted to the network's outputs.
    path:
        The ``.onnx`` file to write, weights included.
    example_input:
        ``[batch, ...]``, two or more inputs; the batch size stays free.
    """
    try:
        import onnx  # noqa: F401
        import onnxscript  # noqa: F401
    except ImportError as error:
        raise MissingDependencyError("onnx and onnxscript", "onnx", "exporting a network") from error
    import torch

    from tood.export.module import ScoredNetwork
    from tood.outputs.extraction import evaluating

    if len(example_input) < 2:
        raise ToodError(f"example_input: expected two inputs or more for a free batch size, found {len(example_input)}")
    module = ScoredNetwork(network, cal, alpha, threshold)
    with evaluating(module):
        program = torch.onnx.export(
            module,
            (example_input,),
            dynamo=True,
            opset_version=OPSET,
            input_names=["input"],
            output_names=["logits", *module.scorer.outputs],
            dynamic_shapes=({0: torch.export.Dim("batch")},),
            verbose=False,
        )
    if program is None:  # only if torch falls back to its old exporter
        raise ToodError("torch.onnx.export gave no program; a newer torch is needed")
    write_atomically(path, lambda temporary: temporary.write_bytes(program.model_proto.SerializeToString()))

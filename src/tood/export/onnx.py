"""Export to ONNX: the scorer alone, small and without torch, or network and scorer in one file."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from tood.arrays import Float64Array
from tood.calibration import TOOD, Channels
from tood.decision import Conformal
from tood.decision.facts import description
from tood.errors import MissingDependencyError, ToodError
from tood.known import Known
from tood.partition import Partition
from tood.storage.files import write_atomically

if TYPE_CHECKING:
    import torch

__all__ = ["export_known", "export_network", "export_scorer"]

Exportable: TypeAlias = TOOD | Conformal
OPSET = 18


def compiled(cal: Exportable, alpha: float | None) -> tuple[Channels, Float64Array | None]:
    """The compiled score, and the score to reach: one number, or one per winning task; None without a decision."""
    score = cal.cal if isinstance(cal, Conformal) else cal
    if not isinstance(score, TOOD):
        found = getattr(score, "name", type(score).__name__)
        raise ToodError(f"cal: expected a fitted TOOD, or a Conformal around one, found {found}")
    if alpha is None:
        return score._fitted(), None
    if not isinstance(cal, Conformal):
        raise ToodError(f"alpha: needs a fitted Conformal, found {type(cal).__name__}")
    return score._fitted(), np.asarray(cal.thresholds(alpha))


def export_scorer(
    cal: Exportable,
    path: str | os.PathLike[str],
    dtype: Literal["float32", "float64"] = "float32",
    alpha: float | None = None,
) -> None:
    """Write a graph from ``logits [batch, C]`` to ``score [batch]`` and ``task [batch]``, the winning one.

    With ``alpha`` there is a third output, ``accept [batch]``, the decision. The graph does not check
    for NaN or infinite numbers as ``cal.score`` does; such rows are not accepted.

    Parameters
    ----------
    cal:
        A fitted :class:`~tood.TOOD`, or a :class:`~tood.decision.Conformal` around one.
    path:
        The ``.onnx`` file to write.
    dtype:
        The precision of the logits, and of every step.
    alpha:
        Decide as ``Conformal.decide(…, alpha)`` does.
    """
    channels, limits = compiled(cal, alpha)
    graph = Graph(dtype)
    graph.score(channels)
    graph.decide(limits, "task")
    texts = {f"tood.{name}": text for name, text in description(cal).items()}
    graph.write(path, {"logits": channels.partition.columns}, "task", texts)


def export_known(
    known: Known,
    path: str | os.PathLike[str],
    alpha: float | None = None,
    dtype: Literal["float32", "float64"] = "float32",
) -> None:
    """Write a graph from ``vectors [batch, D]`` to ``score [batch]`` and ``class [batch]``, a place in ``classes_``.

    With ``alpha`` there is a third output, ``accept [batch]``, the decision of ``known.decide(vectors, alpha)``. Rows
    with NaN are not accepted. The file has the classes' names in its metadata, as ``classes``, one per line.

    Parameters
    ----------
    known:
        A :class:`~tood.Known` with classes.
    path:
        The ``.onnx`` file to write.
    alpha:
        The share of known inputs, per class, that may be rejected.
    dtype:
        The precision of the input and of every step.
    """
    model, graph = known._model(), Graph(dtype)
    axis = graph.constant([1])
    y = graph.add("MatMul", graph.add("Sub", "vectors", graph.constant(model.origin)), graph.constant(model.whitening))
    squares = graph.add("Mul", y, y)
    products = graph.add("MatMul", y, graph.constant(2 * model.points.T))
    apart = graph.add("Sub", products, graph.add("ReduceSum", squares, axis))
    apart = graph.add("Sub", apart, graph.constant((model.points**2).sum(axis=1)))
    background = graph.add("MatMul", squares, graph.constant(model.background[:, None]))
    scores = graph.add("Add", graph.add("Div", apart, graph.constant(model.widths)), background)
    scores = graph.add("Sub", scores, graph.constant(model.dimensions * np.log(model.widths)))
    graph.add("ReduceMax", scores, axis, keepdims=0, names=["score"])
    graph.add("ArgMax", scores, axis=1, keepdims=0, names=["class"])
    graph.decide(None if alpha is None else known.thresholds(alpha), "class")
    texts = {"classes": "\n".join(map(str, known.classes_))}
    graph.write(path, {"vectors": len(model.origin)}, "class", texts)


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

    def add(self, operator: str, *inputs: str, names: Iterable[str] = (), **attributes: Any) -> str:
        """Add a node; returns the name of its first output."""
        from onnx import helper

        outputs = list(names) or [f"{operator}_{len(self.nodes)}"]
        self.nodes.append(helper.make_node(operator, list(inputs), outputs, **attributes))
        return outputs[0]

    def constant(self, values: npt.ArrayLike) -> str:
        """Add whole numbers, or others in the graph's precision; returns their name."""
        from onnx import numpy_helper

        name, array = f"constant_{len(self.constants)}", np.asarray(values)
        array = array.astype(np.int64 if array.dtype.kind == "i" else self.dtype)
        self.constants.append(numpy_helper.from_array(array, name))
        return name

    def energies(self, partition: Partition) -> str:
        """``[batch, N]``: each segment stabilised by its own maximum, as in :mod:`tood.energy`."""
        layout, logits = partition.layout, "logits"
        if not layout.in_order:
            logits = self.add("Gather", "logits", self.constant(layout.order), axis=1)
        energies = []
        for start, size, tasks in layout.segments:
            end = self.constant([start + size * tasks])
            segment = self.add("Slice", logits, self.constant([start]), end, self.constant([1]))
            segment = self.add("Reshape", segment, self.constant([-1, tasks, size]))
            top = self.add("ReduceMax", segment, self.constant([2]), keepdims=1)
            total = self.add(
                "ReduceSum", self.add("Exp", self.add("Sub", segment, top)), self.constant([2]), keepdims=0
            )
            energies.append(self.add("Add", self.add("Log", total), self.add("Squeeze", top, self.constant([2]))))
        joined = self.add("Concat", *energies, axis=1)
        return self.add("Gather", joined, self.constant(layout.places), axis=1)

    def score(self, channels: Channels) -> None:
        """The score and the winning task, as :meth:`tood.calibration.Channels.evaluate`."""
        energies = self.energies(channels.partition)
        centred = self.add("Sub", energies, self.constant(channels.location))
        values = self.add("Div", centred, self.constant(channels.scale))
        count = min(2, len(channels.partition))
        best = self.add("TopK", values, self.constant([count]), names=["best", "winners"], axis=1)
        first, last, axis = self.constant([0]), self.constant([-1]), self.constant([1])
        top = self.add("Squeeze", self.add("Gather", best, first, axis=1), axis)
        second = self.add("Squeeze", self.add("Gather", best, last, axis=1), axis)
        lead = self.add("Mul", self.add("Sub", top, second), self.constant(channels.margin))
        zero = self.add("ReduceSum", self.add("Mul", "logits", self.constant(0.0)), axis, keepdims=0)
        lead = self.add("Add", lead, zero)  # NaN if any is not finite: else TopK or an energy may hide it
        scaled = self.add("Mul", self.add("Add", top, lead), self.constant(channels.gain))
        if channels.energy:
            total = self.add("ReduceLogSumExp", energies, axis, keepdims=0)
            scaled = self.add("Add", scaled, self.add("Mul", total, self.constant(channels.energy)))
        self.add("Add", scaled, self.constant(channels.offset), names=["score"])
        self.add("Squeeze", self.add("Gather", "winners", first, axis=1), axis, names=["task"])

    def decide(self, limits: Float64Array | None, answer: str) -> None:
        """Accept if the score reaches the limit: of all, or of the task or class that won; nothing without limits."""
        if limits is not None:
            limit = self.constant(limits)
            if limits.ndim:
                limit = self.add("Gather", limit, answer, axis=0)
            self.add("GreaterOrEqual", "score", limit, names=["accept"])

    def write(self, path: str | os.PathLike[str], inputs: dict[str, int], answer: str, texts: dict[str, str]) -> None:
        """Write the graph with its inputs (and their columns), outputs and metadata."""
        from onnx import TensorProto, checker, helper

        kind = TensorProto.FLOAT if self.dtype == np.float32 else TensorProto.DOUBLE
        kinds = {"score": kind, answer: TensorProto.INT64}
        if self.nodes[-1].output[0] == "accept":
            kinds["accept"] = TensorProto.BOOL
        make = helper.make_tensor_value_info
        given = [make(name, kind, ["batch", columns]) for name, columns in inputs.items()]
        found = [make(name, output, ["batch"]) for name, output in kinds.items()]
        built = helper.make_graph(self.nodes, "tood", given, found, initializer=self.constants)
        opset = [helper.make_opsetid("", OPSET)]
        model = helper.make_model(built, producer_name="tood", opset_imports=opset, ir_version=8)
        helper.set_model_props(model, texts)
        checker.check_model(model, full_check=True)
        write_atomically(path, lambda temporary: temporary.write_bytes(model.SerializeToString()))


def export_network(
    network: torch.nn.Module,
    cal: Exportable,
    path: str | os.PathLike[str],
    example_input: torch.Tensor,
    alpha: float | None = None,
) -> None:
    """Write network and scorer as one graph: from an input batch to ``logits``, ``score``, ``task`` and ``accept``.

    ``accept`` is there with ``alpha``.

    Parameters
    ----------
    network:
        Maps inputs ``[batch, ...]`` to logits ``[batch, C]``; it is exported in evaluation mode.
    cal, alpha:
        As for :func:`export_scorer`, fitted to the network's outputs.
    path:
        The ``.onnx`` file to write, weights included.
    example_input:
        ``[batch, ...]``, two or more inputs; the batch size stays free.
    """
    try:
        import onnxscript  # noqa: F401
    except ImportError as error:
        raise MissingDependencyError("onnxscript", "onnx", "exporting a network") from error
    import torch

    from tood.export.module import ScoredNetwork
    from tood.outputs.extraction import evaluating

    if len(example_input) < 2:
        raise ToodError(f"example_input: expected two inputs or more for a free batch size, found {len(example_input)}")
    module = ScoredNetwork(network, cal, alpha)
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

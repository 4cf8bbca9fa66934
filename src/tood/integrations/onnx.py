"""Export to ONNX: the scorer alone, a few kilobytes and no torch needed, or a network with the scorer behind it."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

from tood.calibration import TOOD
from tood.errors import MissingDependencyError, ToodError
from tood.files import write_atomically

if TYPE_CHECKING:
    import torch

__all__ = ["export_network", "export_scorer"]

OPSET = 18


def export_scorer(cal: TOOD, path: str | os.PathLike[str], dtype: Literal["float32", "float64"] = "float32") -> None:
    """Write a graph from ``logits [batch, C]`` to ``score [batch]`` and ``task [batch]``, the winning one.

    It does not look for NaN or infinite logits as ``cal.score`` does.

    Parameters
    ----------
    cal:
        A fitted :class:`~tood.TOOD`.
    path:
        The ``.onnx`` file to write.
    dtype:
        The precision of the logits, and of every step.

    Examples
    --------
    >>> import tempfile
    >>> labels = np.repeat(np.arange(4), 30)
    >>> logits = np.random.default_rng(0).normal(size=(120, 4)) + 6 * np.eye(4)[labels]
    >>> export_scorer(TOOD([[0, 1], [2, 3]]).fit(logits, labels), tempfile.mkdtemp() + "/scorer.onnx")
    """
    try:
        import onnx
    except ImportError as error:
        raise MissingDependencyError("onnx", "onnx", "exporting the scorer") from error
    if dtype not in ("float32", "float64"):
        raise ToodError(f"dtype: expected 'float32' or 'float64', found {dtype!r}")
    graph = _Graph(np.dtype(dtype))
    columns = graph.score(cal)
    kind = onnx.TensorProto.FLOAT if dtype == "float32" else onnx.TensorProto.DOUBLE
    make = onnx.helper.make_tensor_value_info
    outputs = [make("score", kind, ["batch"]), make("task", onnx.TensorProto.INT64, ["batch"])]
    built = onnx.helper.make_graph(
        graph.nodes, "tood", [make("logits", kind, ["batch", columns])], outputs, initializer=graph.constants
    )
    model = onnx.helper.make_model(
        built, producer_name="tood", opset_imports=[onnx.helper.make_opsetid("", OPSET)], ir_version=8
    )
    onnx.checker.check_model(model, full_check=True)
    write_atomically(path, lambda temporary: temporary.write_bytes(model.SerializeToString()))


class _Graph:
    """Nodes and constants, each named after its number."""

    def __init__(self, dtype: np.dtype[Any]) -> None:
        self.dtype = dtype
        self.nodes: list[Any] = []
        self.constants: list[Any] = []

    def add(
        self, operator: str, *inputs: str, outputs: int = 1, names: list[str] | None = None, **attributes: Any
    ) -> Any:
        from onnx import helper

        names = names or [f"{operator}_{len(self.nodes)}_{k}" for k in range(outputs)]
        self.nodes.append(helper.make_node(operator, list(inputs), names, **attributes))
        return names[0] if len(names) == 1 else names

    def constant(self, values: npt.ArrayLike, dtype: Any = None) -> str:
        from onnx import numpy_helper

        name = f"constant_{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.asarray(values, dtype=dtype or self.dtype), name))
        return name

    def indices(self, *values: int) -> str:
        return self.constant(values, np.int64)

    def energies(self, cal: TOOD) -> str:
        """``[batch, N]``: each segment stabilised by its own maximum, as in :mod:`tood.energy`."""
        order, in_order, groups = cal.partition_.layout
        logits = "logits" if in_order else self.add("Gather", "logits", self.constant(order, np.int64), axis=1)
        parts = []
        for start, size, members in groups:
            end = start + size * len(members)
            part = self.add("Slice", logits, self.indices(start), self.indices(end), self.indices(1))
            part = self.add("Reshape", part, self.indices(-1, len(members), size))
            top = self.add("ReduceMax", part, self.indices(2), keepdims=1)
            total = self.add("ReduceSum", self.add("Exp", self.add("Sub", part, top)), self.indices(2), keepdims=0)
            top = self.add("Squeeze", top, self.indices(2))
            parts.append(self.add("Add", self.add("Log", total), top))
        joined = self.add("Concat", *parts, axis=1)
        places = np.argsort(np.concatenate([members for _, _, members in groups]))
        return str(self.add("Gather", joined, self.constant(places, np.int64), axis=1))

    def score(self, cal: TOOD) -> int:
        """Everything up to the outputs; returns the number of logit columns."""
        channels, partition = cal.channels(), cal.partition_
        centred = self.add("Sub", self.energies(cal), self.constant(channels.location))
        values = self.add("Div", centred, self.constant(channels.scale))
        best, winner = self.add("TopK", values, self.indices(min(2, len(partition))), outputs=2, axis=1)
        first, last, axis = self.indices(0), self.indices(-1), self.indices(1)
        top = self.add("Squeeze", self.add("Gather", best, first, axis=1), axis)
        second = self.add("Squeeze", self.add("Gather", best, last, axis=1), axis)
        lead = self.add("Mul", self.add("Sub", top, second), self.constant(float(cal.margin)))
        scaled = self.add("Mul", self.add("Add", top, lead), self.constant(channels.gain))
        self.add("Add", scaled, self.constant(channels.offset), names=["score"])
        self.add("Squeeze", self.add("Gather", winner, first, axis=1), axis, names=["task"])
        return partition.columns


def export_network(
    network: torch.nn.Module, cal: TOOD, path: str | os.PathLike[str], example_input: torch.Tensor
) -> None:
    """Write the network with the scorer behind it: from an input batch to ``logits``, ``score`` and ``task``.

    Parameters
    ----------
    network:
        Maps inputs ``[batch, ...]`` to logits ``[batch, C]``; it is exported as it stands, in evaluation mode.
    cal:
        A fitted :class:`~tood.TOOD` for those logits.
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

    from tood.integrations.scorer import ScoredNetwork

    if len(example_input) < 2:
        raise ToodError(f"example_input: expected two inputs or more for a free batch size, found {len(example_input)}")
    modes = [(part, part.training) for part in network.modules()]
    module = ScoredNetwork(network, cal).eval()
    try:
        program = torch.onnx.export(
            module,
            (example_input,),
            dynamo=True,
            opset_version=OPSET,
            input_names=["input"],
            output_names=["logits", "score", "task"],
            dynamic_shapes=({0: torch.export.Dim("batch")},),
            verbose=False,
        )
    finally:
        for part, training in modes:
            part.training = training
    if program is None:  # only where torch falls back to its old exporter
        raise ToodError("torch.onnx.export gave no program; a newer torch is needed")
    write_atomically(path, lambda temporary: temporary.write_bytes(program.model_proto.SerializeToString()))

"""Export known classes of embeddings to ONNX."""

from __future__ import annotations

import os
from typing import Literal

import numpy as np

from tood.export.onnx import Graph
from tood.known import Known

__all__ = ["export_known"]


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
    y = graph.add("MatMul", graph.add("Sub", "vectors", graph.constant(model.origin)), graph.constant(model.whitening))
    squares, axis = graph.add("Mul", y, y), graph.indices(1)
    apart = graph.add(
        "Sub", graph.add("MatMul", y, graph.constant(2 * model.points.T)), graph.add("ReduceSum", squares, axis)
    )
    apart = graph.add("Sub", apart, graph.constant((model.points**2).sum(axis=1)))
    background = graph.add("MatMul", squares, graph.constant(model.background[:, None]))
    scores = graph.add("Add", graph.add("Div", apart, graph.constant(model.widths)), background)
    scores = graph.add("Sub", scores, graph.constant(model.dimensions * np.log(model.widths)))
    graph.add("ReduceMax", scores, axis, keepdims=0, names=["score"])
    graph.add("ArgMax", scores, axis=1, keepdims=0, names=["class"])
    outputs = ["score", "class"]
    if alpha is not None:
        limit = graph.add("Gather", graph.constant(known.thresholds(alpha)), "class", axis=0)
        graph.add("GreaterOrEqual", "score", limit, names=["accept"])
        outputs.append("accept")
    texts = {"classes": "\n".join(map(str, known.classes_))}
    graph.write(path, {"vectors": len(model.origin)}, outputs, texts)

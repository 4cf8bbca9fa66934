"""Input of detectors: outputs and the head, checked, as NumPy arrays, in blocks of rows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from tood.arrays import FloatArray, IntArray, finite, floats, label_columns
from tood.errors import ToodError
from tood.outputs.outputs import Outputs
from tood.partition import Partition

FIT_BLOCK = 1 << 20  # elements per block at fit: a float64 copy takes 8 MiB


class Rows(Outputs):
    """Outputs as checked NumPy arrays; features are ``[n, 0]`` if they are not needed, and ``inputs`` are as given."""

    @property
    def classes(self) -> IntArray:
        """``[n]``: the label of each row; the predicted class if a detector does not need labels and has none."""
        return self.logits.argmax(axis=1) if self.labels is None else self.labels


def head_arrays(head: Any) -> tuple[FloatArray, FloatArray]:
    """Copy weight ``[C, D]`` and bias ``[C]`` of a :class:`Head`, or of anything that has both (``nn.Linear``).

    Copies, because further training changes a network's own in place.
    """
    if not hasattr(head, "weight"):
        raise ToodError(f"head: expected Head(weight, bias) of the last layer, found {type(head).__name__}")
    weight = finite(floats(head.weight, "head.weight", ndim=2), "head.weight")
    bias = getattr(head, "bias", None)
    bias = np.zeros(len(weight), dtype=weight.dtype) if bias is None else floats(bias, "head.bias", ndim=1)
    if len(bias) != len(weight):
        raise ToodError(f"head: expected a bias for each of {len(weight)} weight rows, found {len(bias)}")
    return weight.copy(), finite(bias, "head.bias").copy()


def read_rows(outputs: Any, needs: Iterable[str], labels: bool = False) -> Rows:
    """Check the parts of ``outputs`` that are needed; labels too, if asked for and present."""
    if not isinstance(outputs, Outputs):
        raise ToodError(f"outputs: expected Outputs(logits=...), found {type(outputs).__name__}")
    for name in {"features", "inputs", *["labels"] * labels}.intersection(needs):
        if getattr(outputs, name) is None:
            raise ToodError(f"{name}: this detector reads them, and outputs has none; pass Outputs(..., {name}=...)")
    logits = _matrix(outputs.logits, "logits")
    count, columns = logits.shape
    if "logits" in needs or (labels and outputs.labels is None):  # without labels, predictions
        finite(logits, "logits")
    features = finite(_matrix(outputs.features, "features"), "features") if "features" in needs else logits[:, :0]
    inputs = outputs.inputs if "inputs" in needs else None
    for name, part in (("features", features), ("inputs", inputs)):
        if part is not None and len(part) != count:
            raise ToodError(f"{name}: expected {count} rows, one per row of logits, found {len(part)}")
    known = label_columns(outputs.labels, columns, count) if labels and outputs.labels is not None else None
    return Rows(logits, features, known, inputs)


def _matrix(part: Any, name: str) -> FloatArray:
    array = floats(part, name, ndim=2)
    if array.shape[1] == 0:
        raise ToodError(f"{name}: expected at least one column, found shape {array.shape}")
    return array


class FitData:
    """Fit data, read block by block: ``for rows in data``, as often as needed.

    Parameters
    ----------
    outputs:
        One :class:`Outputs`, or an iterable of them. An iterator, which can be read only once, is held in memory; pass
        a list (or any object that can be iterated again) to avoid that.
    needs:
        The parts a detector reads.
    partition:
        The columns of each task; if given, it must cover the logits.
    weight:
        The shape of the head's weight, if the head is needed.
    """

    def __init__(
        self, outputs: Any, needs: Iterable[str], partition: Any = None, weight: tuple[int, ...] | None = None
    ) -> None:
        if isinstance(outputs, Outputs):
            outputs = [outputs]
        elif not isinstance(outputs, Iterable):
            raise ToodError(f"outputs: expected Outputs or an iterable of them, found {type(outputs).__name__}")
        self._source = list(outputs) if isinstance(outputs, Iterator) else outputs
        self._needs = frozenset(needs)
        self.partition = partition if partition is None or isinstance(partition, Partition) else Partition(partition)
        self._weight = weight
        self.columns = 0  # C, known after the first block
        self.dimensions = 0  # D, known after the first block; 0 if features are not needed
        self.dtype: np.dtype[Any] = np.dtype(np.float32)

    def __iter__(self) -> Iterator[Rows]:
        """Yield blocks of rows; the first one sets ``columns``, ``dimensions`` and ``dtype``."""
        any_rows = False
        for chunk in self._source:
            rows = read_rows(chunk, self._needs, labels=True)
            self._check(rows)
            step = max(256, FIT_BLOCK // max(self.columns, self.dimensions))
            for start in range(0, len(rows.logits), step):
                any_rows = True
                yield rows[start : start + step]
        if not any_rows:
            raise ToodError("outputs: expected at least one sample to fit on, found none")

    def tasks(self, detector: str) -> Partition:
        """The partition; raises if a detector that needs it was not given one."""
        if self.partition is None:
            raise ToodError(f"partition: {detector} needs the logit columns of each task; pass fit(..., partition=...)")
        return self.partition

    def _check(self, rows: Rows) -> None:
        shape = (rows.logits.shape[1], rows.features.shape[1])
        if self.columns and shape != (self.columns, self.dimensions):
            known = (self.columns, self.dimensions)
            raise ToodError(f"outputs: chunks disagree: {known} columns and dimensions, then {shape}")
        (self.columns, self.dimensions), self.dtype = shape, rows.logits.dtype
        if self.partition is not None and self.partition.columns != shape[0]:
            raise ToodError(
                f"logits: expected {self.partition.columns} columns, those of the partition's "
                f"{len(self.partition)} tasks, found {shape[0]}"
            )
        expected = (shape[0], shape[1] or (self._weight or (0, 0))[1])
        if self._weight is not None and self._weight != expected:
            raise ToodError(
                f"head.weight: expected shape {expected}, the logit columns and the feature dimensions, "
                f"found {self._weight}"
            )

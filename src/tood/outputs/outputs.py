"""Outputs of a network, logits, features and labels, and its head: the input of everything that judges."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeVar

__all__ = ["Head", "Outputs"]

Self = TypeVar("Self", bound="Outputs")


@dataclass(frozen=True, eq=False)
class Outputs:
    """Logits, features and labels of one set at one step; NumPy or torch, any device.

    Parameters
    ----------
    logits:
        ``[n, C]``.
    features:
        ``[n, D]``, penultimate features (pooled, flattened), for detectors that need them.
    labels:
        ``[n]``, the logit column of each sample's class; only ``fit`` reads them.
    inputs:
        ``[n, ...]``, the samples as the network takes them (normalised), for detectors that run it again.

    Examples
    --------
    >>> import numpy as np
    >>> outputs = Outputs(logits=np.zeros((3, 2)), features=np.ones((3, 4)))
    >>> len(outputs), outputs[:2].features.shape
    (3, (2, 4))
    """

    logits: Any
    features: Any = None
    labels: Any = None
    inputs: Any = None

    def __len__(self) -> int:
        return len(self.logits)

    def __getitem__(self: Self, rows: Any) -> Self:
        parts = (self.logits, self.features, self.labels, self.inputs)
        return type(self)(*(None if part is None else part[rows] for part in parts))


@dataclass(frozen=True, eq=False)
class Head:
    """The last linear layer: ``logits = features @ weight.T + bias``.

    Parameters
    ----------
    weight:
        ``[C, D]``.
    bias:
        ``[C]``; zero if None.
    """

    weight: Any
    bias: Any = None

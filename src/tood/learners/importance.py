"""Importance and anchor of each weight, shared by EWC and SI."""

from __future__ import annotations

import torch
from torch import Tensor, nn

Weights = dict[str, Tensor]


def copy_weights(network: nn.Module) -> Weights:
    """A copy of every trained weight by name."""
    return {name: parameter.detach().clone() for name, parameter in network.named_parameters()}


def widen(stored: Weights, network: nn.Module) -> Weights:
    """``stored``, with zeros for new rows of the head and for weights that it does not have."""
    wide = {name: torch.zeros_like(parameter) for name, parameter in network.named_parameters()}
    for name, tensor in stored.items():
        _old_rows(wide[name], tensor).copy_(tensor)
    return wide


def penalty(network: nn.Module, importance: Weights, anchor: Weights) -> Tensor:
    """``Σ_i importance_i (θ_i - anchor_i)²``; new rows of the head are free."""
    total = torch.zeros((), device=next(network.parameters()).device)
    for name, parameter in network.named_parameters():
        if name in importance:
            weight = importance[name]
            total = total + (weight * (_old_rows(parameter, weight) - anchor[name]).square()).sum()
    return total


def _old_rows(tensor: Tensor, stored: Tensor) -> Tensor:
    """The rows of ``tensor`` that ``stored`` has, as a view; a scalar has no rows."""
    return tensor[: len(stored)] if stored.ndim else tensor

"""A network: a backbone that gives features and the head that turns them into logits."""

from __future__ import annotations

import copy
import json
import os
from collections.abc import Mapping
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

from tood.arrays import to_numpy
from tood.errors import ToodError
from tood.models.head import GrowingHead
from tood.outputs.extraction import evaluating, logits_of
from tood.storage.files import read_tensors, write_tensors

__all__ = ["Network"]

KIND = "tood-network"


class Network(nn.Module):
    """Backbone and linear head; ``network(x)`` returns logits, with every correction inside :attr:`head`.

    Parameters
    ----------
    backbone:
        A module that maps inputs to features ``[n, D]``.
    head:
        The linear head; its ``dim`` is D.
    spec:
        What :func:`tood.models.create` needs to build the backbone again; without it a saved network can only be
        loaded into a backbone that is given.

    Examples
    --------
    >>> from tood import models
    >>> network = models.create("mlp", shape=(16,), columns=4)
    >>> x = torch.zeros(2, 16)
    >>> weight, bias = network.effective_head()
    >>> bool(torch.allclose(network(x), network.features(x) @ weight.T + bias))
    True
    """

    def __init__(self, backbone: nn.Module, head: GrowingHead, spec: Mapping[str, Any] | None = None) -> None:
        super().__init__()
        self.backbone = backbone
        self.head = head
        self.spec = None if spec is None else dict(spec)

    def normalisation(self, channels: int) -> tuple[tuple[float, ...], tuple[float, ...]] | None:
        """Mean and standard deviation per channel that pretrained weights expect; None if the backbone has none.

        A backbone may give one number for all channels. If it has another number of channels, their mean is used.
        """
        expected = getattr(self.backbone, "normalisation", None)
        if expected is None:
            return None
        mean, std = (
            np.ravel(values) if np.size(values) == channels else [np.mean(values)] * channels for values in expected
        )
        return tuple(map(float, mean)), tuple(map(float, std))

    @classmethod
    def wrap(cls, module: nn.Module, example: Tensor | None = None) -> Network:
        """A copy of any module whose last layer is linear, split there into backbone and head.

        Parameters
        ----------
        module:
            Its last ``nn.Linear`` must be what produces the output.
        example:
            A batch of inputs; if given, the split network is checked to return the same logits as the module.
        """
        last = next((name for name, m in reversed(list(module.named_modules())) if isinstance(m, nn.Linear)), None)
        if last is None:
            raise ToodError(f"module: expected a network whose last layer is nn.Linear, found {type(module).__name__}")
        backbone = nn.Sequential(copy.deepcopy(module))  # so that a bare linear layer has a parent too
        last = f"0.{last}".rstrip(".")
        linear = cast(nn.Linear, backbone.get_submodule(last))
        backbone.set_submodule(last, nn.Identity())
        network = cls(backbone, _head_of(linear))
        network.train(module.training)
        if example is not None:
            with torch.no_grad(), evaluating(module), evaluating(network):
                expected, found = logits_of(module(example)), network(example)
            if expected.shape != found.shape or not torch.allclose(expected, found, rtol=1e-4, atol=1e-5):
                raise ToodError(f"module: its last linear layer, {last!r}, is not what produces the output")
        return network

    def features(self, x: Tensor) -> Tensor:
        """Penultimate features ``[n, D]``."""
        return logits_of(self.backbone(x))  # a wrapped Hugging Face model returns them in place of its logits

    def forward(self, x: Tensor) -> Tensor:
        """Logits ``[n, C]``."""
        return self.head(self.features(x))

    def grow(self, columns: int) -> None:
        """Add columns to the head."""
        self.head.grow(columns)

    def effective_head(self) -> tuple[Tensor, Tensor]:
        """Weight ``[C, D]`` and bias ``[C]`` with ``logits = features @ weightᵀ + bias``, corrections included."""
        weight, bias = self.head.effective()
        return weight.detach().clone(), bias.detach().clone()

    def fused(self) -> Network:
        """A frozen copy for inference: eval mode, channels_last, batch normalisation folded into the convolutions."""
        network = copy.deepcopy(self).eval().requires_grad_(False)
        for module in list(network.modules()):
            if isinstance(module, nn.Sequential):
                _fuse(module)
        network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        return network

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write weights and architecture to one safetensors file, atomically."""
        tensors = {name: to_numpy(tensor) for name, tensor in self.state_dict().items()}
        write_tensors(path, KIND, tensors, {"spec": json.dumps(self.spec)})

    @classmethod
    def load(cls, path: str | os.PathLike[str], backbone: nn.Module | None = None) -> Network:
        """Load a file that :meth:`save` wrote.

        Parameters
        ----------
        path:
            The file.
        backbone:
            The module to load the weights into; needed only if the saved network came from :meth:`wrap`.
        """
        from tood import models

        arrays, metadata = read_tensors(path, KIND)
        tensors = {name: torch.from_numpy(array) for name, array in arrays.items()}
        try:
            spec, weight = json.loads(metadata["spec"]), tensors["head.weight"]
            if backbone is not None:
                like = next((p for p in backbone.parameters() if p.is_floating_point()), weight)
                network = cls(backbone, GrowingHead(weight.shape[1]).to(like), spec)
            elif spec is None:
                raise ToodError("a network of your own design; pass its backbone to load it")
            else:
                network = models.rebuild(spec, tensors)
            network.load_state_dict(tensors)
        except (AttributeError, ArithmeticError, LookupError, TypeError, ValueError, RuntimeError) as error:
            raise ToodError(f"{os.fspath(path)}: not a usable network: {error}") from error
        return network


def _head_of(linear: nn.Linear) -> GrowingHead:
    """A head with the weights of a linear layer."""
    head = GrowingHead(linear.in_features).to(linear.weight)  # device and precision
    head.resize(linear.out_features)
    head.load_state_dict(linear.state_dict(), strict=False)
    return head


def _fuse(sequence: nn.Sequential) -> None:
    """Fold each batch normalisation into the convolution right before it; the sequence guarantees their order."""
    for i in range(len(sequence) - 1):
        convolution, norm = sequence[i], sequence[i + 1]
        if isinstance(convolution, nn.Conv2d) and isinstance(norm, nn.BatchNorm2d) and norm.running_mean is not None:
            sequence[i], sequence[i + 1] = fuse_conv_bn_eval(convolution, norm), nn.Identity()

"""Networks: a backbone by name and a growing linear head, which holds any correction of the logits.

>>> from tood import models
>>> network = models.create("resnet8", shape=(32, 32, 3), columns=10)
>>> network.head.dim
64
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from tood.errors import MissingDependencyError, ToodError, UnknownNameError

try:
    import torch
    from torch import nn
except ImportError as error:
    raise MissingDependencyError("torch", "torch", "a network") from error

from tood.models.backbones import ConvNet, Perceptron, cifar_resnet, resnet18
from tood.models.efficientnet_lite import EfficientNetLite
from tood.models.extract import extract
from tood.models.head import Head
from tood.models.network import Network
from tood.models.tops import add_top
from tood.models.vit import ViT

__all__ = ["Head", "Network", "create", "extract", "names", "suggest"]

BACKBONES: dict[str, Callable[..., nn.Module]] = {
    "convnet": ConvNet,
    "efficientnet_lite0": partial(EfficientNetLite, variant=0),
    "efficientnet_lite1": partial(EfficientNetLite, variant=1),
    "efficientnet_lite2": partial(EfficientNetLite, variant=2),
    "mlp": Perceptron,
    "resnet8": partial(cifar_resnet, depth=8),
    "resnet18": resnet18,
    "resnet18_imagenet": partial(resnet18, small=False),  # ImageNet's stem at any size: a 16th of the work
    "resnet20": partial(cifar_resnet, depth=20),
    "resnet20_icarl": partial(cifar_resnet, depth=20, signed=True),
    "resnet32": partial(cifar_resnet, depth=32),
    "resnet32_icarl": partial(cifar_resnet, depth=32, signed=True),  # no ReLU at the end: iCaRL's, the TOOD authors'
    "vit": ViT,
}


def names() -> list[str]:
    """The networks :func:`create` knows; any timm model is also one, as ``"timm:NAME"``."""
    return sorted(BACKBONES)


def suggest(shape: Sequence[int]) -> str:
    """The default network for samples of a shape: perceptron, small convolutional net or residual net."""
    if len(shape) == 1:
        return "mlp"
    size = max(shape[:2])
    return "convnet" if size <= 28 else "resnet32" if size <= 64 else "resnet18"


def create(name: str, shape: Sequence[int], columns: int = 0, seed: int = 0, **options: Any) -> Network:
    """A network by name.

    Parameters
    ----------
    name:
        One of :func:`names`, or ``"timm:NAME"``, or ``"timm:NAME+pretrained"`` with weights from the hub.
    shape:
        Shape of one sample: ``(H, W, C)`` or ``(D,)``.
    columns:
        Initial number of logit columns; learners grow the head themselves.
    seed:
        Seed of the initial weights; torch's own random state is not changed.
    options:
        Options of the backbone: ``widths`` (convnet, mlp), ``patch``, ``dim``, ``depth``, ``heads`` (vit), ``size``,
        ``pretrained`` and ``batch_statistics`` (efficientnet_lite), ``pretrained`` and others (timm); ``top`` for any
        of them, a fixed transform of its features (see :func:`tood.models.tops.add_top`).
    """
    shape = [int(size) for size in shape]
    build = BACKBONES.get(name)
    if name.startswith("timm:"):
        if name.endswith("+pretrained"):
            name, options = name.removesuffix("+pretrained"), {**options, "pretrained": True}
        build = partial(_timm, name)
    if build is None:
        raise UnknownNameError("network", name, names())
    top = options.pop("top", None)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        try:
            backbone = build(shape, **options)
        except TypeError as error:
            raise ToodError(f"network {name!r}: {error}") from error
        head = Head(int(backbone.dim), columns)  # type: ignore[arg-type]
    # A reloaded network gets its weights from its own file, not from the hub or a package.
    kept = {key: value for key, value in options.items() if key != "pretrained"}
    if hasattr(backbone, "pretrained"):
        kept["pretrained"] = False
    if hasattr(backbone, "batch_statistics"):
        kept["batch_statistics"] = backbone.batch_statistics  # its default depends on `pretrained`
    network = Network(backbone, head, {"name": name, "shape": shape, **kept})
    return add_top(network, **top) if top else network


def _timm(name: str, shape: Sequence[int], **options: Any) -> nn.Module:
    """A timm model without its classifier; images are resized to the size it was made for."""
    try:
        import timm
    except ImportError as error:
        raise MissingDependencyError("timm", "timm", f"the network {name!r}") from error
    except RuntimeError as error:  # such as "operator torchvision::nms does not exist"
        raise ToodError(f"the network {name!r} needs timm, which cannot be imported: {error}") from error
    try:
        model: nn.Module = timm.create_model(name.removeprefix("timm:"), num_classes=0, in_chans=shape[2], **options)
    except Exception as error:  # any error of timm or of the hub: an unknown name, no weights, no connection
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise ToodError(f"network {name!r}: timm cannot make it ({reason})") from error
    size = tuple(model.default_cfg["input_size"][1:])  # type: ignore[index]
    backbone = model if size == tuple(shape[:2]) else nn.Sequential(nn.Upsample(size, mode="bicubic"), model)
    backbone.dim = model.num_features
    backbone.normalisation = model.default_cfg["mean"], model.default_cfg["std"]  # type: ignore[index, assignment]
    return backbone

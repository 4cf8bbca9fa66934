"""Networks: a backbone by name and a growing linear head, which holds any correction of the logits.

>>> from tood import models
>>> network = models.create("resnet8", shape=(32, 32, 3), columns=10)
>>> network.head.dim
64
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from tood.errors import MissingDependencyError, ToodError
from tood.registry import Registry

try:
    import torch
    from torch import nn
except ImportError as error:
    raise MissingDependencyError("torch", "torch", "a network") from error

from tood.models.backbones import ConvNet, Perceptron, cifar_resnet, resnet18, resnet50
from tood.models.efficientnet_lite import EfficientNetLite
from tood.models.head import GrowingHead
from tood.models.network import Network
from tood.models.tops import add_top
from tood.models.vit import ViT

__all__ = ["GrowingHead", "Network", "create", "names", "register", "suggest"]

BUILT_IN: dict[str, Callable[..., nn.Module]] = {
    "convnet": ConvNet,
    "efficientnet_lite0": partial(EfficientNetLite, variant=0),
    "efficientnet_lite1": partial(EfficientNetLite, variant=1),
    "mlp": Perceptron,
    "resnet8": partial(cifar_resnet, depth=8),
    "resnet18": resnet18,
    "resnet18_imagenet": partial(resnet18, small=False),  # ImageNet's stem at any size: a 16th of the work
    "resnet20": partial(cifar_resnet, depth=20),
    "resnet20_icarl": partial(cifar_resnet, depth=20, signed=True),
    "resnet32": partial(cifar_resnet, depth=32),
    "resnet32_icarl": partial(cifar_resnet, depth=32, signed=True),  # no ReLU at the end: iCaRL's, the TOOD authors'
    "resnet50": resnet50,
    "vit": ViT,
}
# Options that a file may set: those of our networks, and of timm's those that neither download nor open anything.
SAFE_OPTIONS = {"widths", "patch", "dim", "depth", "heads", "size", "batch_statistics", "signed", "small", "img_size"}
SAFE_OPTIONS |= {"patch_size", "embed_dim", "num_heads", "global_pool", "drop_rate"}
NETWORKS: Registry[Callable[..., nn.Module]] = Registry("network", "tood.networks")
register = NETWORKS.register  # @register("name"): a function or class (shape, **options) -> a module with `dim`
for _name, _build in BUILT_IN.items():
    register(_name)(_build)


def names() -> list[str]:
    """The networks :func:`create` knows; any timm model is also one, as ``"timm:NAME"``."""
    return sorted(NETWORKS.names())


def builder(name: str) -> Callable[..., nn.Module]:
    """The function or class that makes the backbone of a name; raises if there is none.

    What a path names must be a module or registered: a configuration must not call just anything.
    """
    if name.startswith("timm:"):
        return partial(_timm, name)
    build: Any = NETWORKS.get(name)
    module = isinstance(build, type) and issubclass(build, nn.Module)
    if not module and all(build is not known for _, known in NETWORKS.items()):
        raise ToodError(f"network {name!r}: expected a subclass of torch.nn.Module, or registered, found {build!r}")
    return build


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
        One of :func:`names`, ``"package.module:Class"``, ``"timm:NAME"``, or ``"timm:NAME+pretrained"`` with weights
        from the hub. A class of your own is called with ``shape`` and returns features ``[n, dim]``; ``dim`` is its
        attribute.
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
    if name.endswith("+pretrained"):
        name, options = name.removesuffix("+pretrained"), {**options, "pretrained": True}
    build, top = builder(name), options.pop("top", None)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        try:
            backbone: Any = build(shape, **options)
            head = GrowingHead(int(backbone.dim), columns)
        except ToodError:
            raise
        except Exception as error:  # an unknown option, no connection, a mistake in a user's own class
            reason = (str(error).strip() or type(error).__name__).splitlines()[0]
            raise ToodError(f"network {name!r}: {reason}") from error
    # A reloaded network gets its weights from its own file, not from the hub or a package.
    kept = {key: value for key, value in options.items() if key != "pretrained"}
    if isinstance(backbone, EfficientNetLite):
        kept |= {"pretrained": False, "batch_statistics": backbone.batch_statistics}  # whose default depends on it
    network = Network(backbone, head, {"name": name, "shape": shape, **kept})
    return add_top(network, **top) if top else network


def rebuild(spec: Mapping[str, Any], tensors: Mapping[str, torch.Tensor]) -> Network:
    """The network that a file describes, with random weights; a stranger's file can neither import nor download.

    Parameters
    ----------
    spec:
        ``name``, ``shape``, perhaps ``top``, and options. Only a network that is built in, registered or of timm can be
        rebuilt, and only with options that open nothing.
    tensors:
        Its weights. They must have the sizes that ``spec`` describes before memory is taken for them.
    """
    name = spec["name"]
    options = {key: value for key, value in spec.items() if key not in ("name", "shape", "top")}
    if options.get("pretrained") is False:
        del options["pretrained"]
    if not (re.fullmatch(r"timm:[\w.]+", name) or NETWORKS.known(name)):  # timm:hf-hub:OWNER/NAME would download
        raise ToodError(f"name: expected a network that is built in, registered or of timm, found {name!r}")
    if unsafe := set(options) - SAFE_OPTIONS:
        raise ToodError(f"option {min(unsafe)!r} is not one that a file may set; pass the backbone")
    if name.startswith(("timm:", "efficientnet_lite")):
        options["pretrained"] = False
    build = partial(create, name, spec["shape"], **options, top=spec.get("top"))
    if options.get("depth", 0) > len(tensors):
        raise ToodError(f"depth: {options['depth']} layers, but {len(tensors)} tensors")
    with torch.device("meta"):  # takes no memory
        described = build()
    sizes = {f"backbone.{key}": tensor.shape for key, tensor in described.backbone.state_dict().items()}
    wrong = [key for key, size in sizes.items() if key not in tensors or tensors[key].shape != size]
    if wrong or described.head.dim != tensors["head.weight"].shape[1]:
        raise ToodError(f"its weights are not those of the network it describes ({(wrong or ['head.weight'])[0]})")
    return build()


def _timm(name: str, shape: Sequence[int], **options: Any) -> nn.Module:
    """A timm model without its classifier; images are resized to the size it was made for."""
    try:
        import timm
    except ImportError as error:
        raise MissingDependencyError("timm", "timm", f"the network {name!r}") from error
    model: nn.Module = timm.create_model(name.removeprefix("timm:"), num_classes=0, in_chans=shape[2], **options)
    size = tuple(model.default_cfg["input_size"][1:])  # type: ignore[index]
    backbone = model if size == tuple(shape[:2]) else nn.Sequential(nn.Upsample(size, mode="bicubic"), model)
    backbone.dim = model.num_features
    backbone.normalisation = model.default_cfg["mean"], model.default_cfg["std"]  # type: ignore[index, assignment]
    return backbone

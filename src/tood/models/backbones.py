"""Feature extractors: residual networks for small and large images, a small convolutional net, a perceptron.

Each maps ``[n, C, H, W]`` (the perceptron also ``[n, D]``) to features ``[n, dim]``, which are non-negative except in
``resnet…_icarl``. A convolution and its normalisation are always neighbours in one ``nn.Sequential``, which is how
:meth:`~tood.models.Network.fused` finds them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from torch import Tensor, cat, nn, zeros_like
from torch.nn import functional

from tood.errors import ToodError

__all__ = ["ConvNet", "Perceptron", "ResNet", "cifar_resnet", "resnet18", "resnet50"]


def conv_bn(inputs: int, outputs: int, kernel: int = 3, stride: int = 1) -> nn.Sequential:
    """A convolution without bias and its batch normalisation."""
    convolution = nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, bias=False)
    nn.init.kaiming_normal_(convolution.weight, mode="fan_out", nonlinearity="relu")  # N(0, 2 / (k k outputs))
    return nn.Sequential(convolution, nn.BatchNorm2d(outputs))


class ZeroPad(nn.Module):
    """The parameter-free shortcut (option A of He et al.): every second pixel, zeros for the new channels.

    Pooling with a window of one pixel subsamples and, unlike slicing, keeps gradients in channels_last.
    """

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.doubles = outputs == 2 * inputs
        self.stride = stride

    def forward(self, x: Tensor) -> Tensor:
        """``[n, C, H, W]`` to ``[n, 2C, H / 2, W / 2]``."""
        x = functional.avg_pool2d(x, 1, self.stride)
        return cat([x, zeros_like(x)], dim=1) if self.doubles else x


class BasicBlock(nn.Module):
    """Two 3×3 convolutions and a shortcut; the sum and its ReLU are computed in place.

    With ``signed`` there is no ReLU after the sum.
    """

    def __init__(self, inputs: int, outputs: int, stride: int, project: bool, signed: bool = False) -> None:
        super().__init__()
        self.signed = signed
        self.first = conv_bn(inputs, outputs, stride=stride)
        self.second = conv_bn(outputs, outputs)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.shortcut = conv_bn(inputs, outputs, 1, stride) if project else ZeroPad(inputs, outputs, stride)

    def forward(self, x: Tensor) -> Tensor:
        """``[n, C, H, W]`` to ``[n, C', H', W']``."""
        y: Tensor = self.second(self.first(x).relu_()).add_(self.shortcut(x))
        return y if self.signed else y.relu_()


class Bottleneck(nn.Module):
    """A 3×3 convolution between two of 1×1, the last of which has four times the channels, and a shortcut."""

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        self.first = conv_bn(inputs, width, 1)
        self.second = conv_bn(width, width, stride=stride)
        self.third = conv_bn(width, 4 * width, 1)
        self.shortcut = nn.Identity() if inputs == 4 * width else conv_bn(inputs, 4 * width, 1, stride)

    def forward(self, x: Tensor) -> Tensor:
        """``[n, C, H, W]`` to ``[n, C', H', W']``."""
        return self.third(self.second(self.first(x).relu_()).relu_()).add_(self.shortcut(x)).relu_()


class ResNet(nn.Module):
    """A stem, stages of basic blocks that halve the image from the second on, and the mean over pixels.

    Parameters
    ----------
    stem:
        From the image to ``widths[0]`` channels.
    widths:
        Channels of each stage.
    blocks:
        Basic blocks per stage.
    project:
        Whether shortcuts that change shape are 1×1 convolutions (else they pad with zeros).
    signed:
        Whether the last block has no ReLU, so that features can be negative.

    References
    ----------
    He et al., "Deep Residual Learning for Image Recognition", CVPR 2016.
    """

    def __init__(
        self, stem: nn.Module, widths: Sequence[int], blocks: int, project: bool, signed: bool = False
    ) -> None:
        super().__init__()
        self.stem = stem
        self.stages = nn.Sequential()
        inputs = widths[0]
        for stage, width in enumerate(widths):
            for block in range(blocks):
                stride = 2 if stage and not block else 1
                last = stage == len(widths) - 1 and block == blocks - 1
                self.stages.append(BasicBlock(inputs, width, stride, project, signed and last))
                inputs = width
        self.dim = inputs

    def forward(self, x: Tensor) -> Tensor:
        """Features ``[n, dim]`` of images ``[n, C, H, W]``."""
        return self.stages(self.stem(x)).mean((2, 3))


def cifar_resnet(shape: Sequence[int], depth: int, signed: bool = False) -> ResNet:
    """ResNet for CIFAR, of depth 6k + 2: 16, 32, 64 channels; 463,504 parameters at depth 32."""
    stem = nn.Sequential(*conv_bn(_channels(shape), 16), nn.ReLU(inplace=True))
    return ResNet(stem, (16, 32, 64), (depth - 2) // 6, project=False, signed=signed)


def resnet18(shape: Sequence[int], small: bool | None = None) -> ResNet:
    """ResNet-18; ``small`` images, by default those of up to 64 pixels, get a 3×3 stem without pooling."""
    return ResNet(_stem(shape, small), (64, 128, 256, 512), 2, project=True)


def resnet50(shape: Sequence[int], small: bool | None = None) -> ResNet:
    """ResNet-50, with the stem of :func:`resnet18`: 23,508,032 parameters and 2,048 features."""
    network = ResNet(_stem(shape, small), (64,), 0, project=True)
    for stage, blocks in enumerate((3, 4, 6, 3)):
        for block in range(blocks):
            network.stages.append(Bottleneck(network.dim, 64 << stage, 2 if stage and not block else 1))
            network.dim = 256 << stage
    return network


def _stem(shape: Sequence[int], small: bool | None) -> nn.Sequential:
    """From the image to 64 channels."""
    small = max(shape[:2]) <= 64 if small is None else small
    layers = [*conv_bn(_channels(shape), 64, *((3, 1) if small else (7, 2))), nn.ReLU(inplace=True)]
    return nn.Sequential(*layers, *([] if small else [nn.MaxPool2d(3, 2, 1)]))


class ConvNet(nn.Sequential):
    """Three convolutions for images of a few pixels, such as 8×8 digits, and the mean over pixels."""

    def __init__(self, shape: Sequence[int], widths: Sequence[int] = (32, 64, 64)) -> None:
        super().__init__()
        inputs = _channels(shape)
        for layer, width in enumerate(widths):
            for module in (*conv_bn(inputs, width, stride=2 if layer else 1), nn.ReLU(inplace=True)):
                self.append(module)
            inputs = width
        self.append(nn.AdaptiveAvgPool2d(1)).append(nn.Flatten())
        self.dim = inputs


class Perceptron(nn.Sequential):
    """Fully connected layers with ReLU, for vectors or small images."""

    def __init__(self, shape: Sequence[int], widths: Sequence[int] = (128, 64)) -> None:
        super().__init__(nn.Flatten())
        inputs = math.prod(shape)
        for width in widths:
            self.append(nn.Linear(inputs, width)).append(nn.ReLU(inplace=True))
            inputs = width
        self.dim = inputs


def _channels(shape: Sequence[int]) -> int:
    if len(shape) != 3:
        raise ToodError(f"shape: expected images (H, W, C), found {tuple(shape)}; vectors need the network 'mlp'")
    return shape[2]

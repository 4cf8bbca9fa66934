"""Feature extractors: residual networks for small and large images, a small convolutional net, a perceptron.

Each maps ``[n, C, H, W]`` (the perceptron also ``[n, D]``) to features ``[n, dim]``, which are non-negative except in
``resnet…_icarl``. A convolution and its normalisation are always neighbours in one ``nn.Sequential``, which is how
:meth:`~tood.models.Network.fused` finds them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

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

    def forward(self, x: Tensor) -> Tensor:
        """``[n, C, H, W]`` to ``[n, 2C, H / 2, W / 2]``."""
        x = functional.avg_pool2d(x, 1, 2)
        return cat([x, zeros_like(x)], dim=1)


class BasicBlock(nn.Module):
    """Two 3×3 convolutions and a shortcut; more channels come with half the pixels. Sum and ReLU are in place.

    A shortcut that changes shape is a 1×1 convolution (``project``) or pads with zeros. Without ``relu`` there is none
    after the sum.
    """

    def __init__(self, inputs: int, outputs: int, project: bool) -> None:
        super().__init__()
        stride = 1 if inputs == outputs else 2
        self.relu = True
        self.first = conv_bn(inputs, outputs, stride=stride)
        self.second = conv_bn(outputs, outputs)
        self.shortcut: nn.Module = nn.Identity()
        if stride == 2:
            self.shortcut = conv_bn(inputs, outputs, 1, stride) if project else ZeroPad()

    def forward(self, x: Tensor) -> Tensor:
        """``[n, C, H, W]`` to ``[n, C', H', W']``."""
        y: Tensor = self.second(self.first(x).relu_()).add_(self.shortcut(x))
        return y.relu_() if self.relu else y


class Bottleneck(nn.Module):
    """A 3×3 convolution between two of 1×1, the last of which has four times the channels, and a shortcut."""

    def __init__(self, inputs: int, width: int) -> None:
        super().__init__()
        stride = 2 if inputs == 2 * width else 1  # the first block of a later stage
        self.first = conv_bn(inputs, width, 1)
        self.second = conv_bn(width, width, stride=stride)
        self.third = conv_bn(width, 4 * width, 1)
        self.shortcut = nn.Identity() if inputs == 4 * width else conv_bn(inputs, 4 * width, 1, stride)

    def forward(self, x: Tensor) -> Tensor:
        """``[n, C, H, W]`` to ``[n, C', H', W']``."""
        return self.third(self.second(self.first(x).relu_()).relu_()).add_(self.shortcut(x)).relu_()


class ResNet(nn.Module):
    """A stem, residual blocks, and the mean over pixels; ``dim`` is the number of channels at the end.

    References
    ----------
    He et al., "Deep Residual Learning for Image Recognition", CVPR 2016.
    """

    def __init__(self, stem: nn.Module, stages: nn.Sequential, dim: int) -> None:
        super().__init__()
        self.stem = stem
        self.stages = stages
        self.dim = dim

    def forward(self, x: Tensor) -> Tensor:
        """Features ``[n, dim]`` of images ``[n, C, H, W]``."""
        return self.stages(self.stem(x)).mean((2, 3))


def cifar_resnet(shape: Sequence[int], depth: int, signed: bool = False) -> ResNet:
    """ResNet for CIFAR, of depth 6k + 2: 16, 32, 64 channels; 463,504 parameters at depth 32.

    With ``signed`` the last block has no ReLU, so that features can be negative.
    """
    stem = nn.Sequential(*conv_bn(_channels(shape), 16), nn.ReLU(inplace=True))
    stages = _basic_stages((16, 32, 64), (depth - 2) // 6, project=False)
    stages[-1].relu = not signed  # type: ignore[assignment]
    return ResNet(stem, stages, 64)


def resnet18(shape: Sequence[int], small: bool | None = None) -> ResNet:
    """ResNet-18; ``small`` images, by default those of up to 64 pixels, get a 3×3 stem without pooling."""
    return ResNet(_stem(shape, small), _basic_stages((64, 128, 256, 512), 2, project=True), 512)


def _basic_stages(widths: Sequence[int], blocks: int, project: bool) -> nn.Sequential:
    inputs = [widths[0], *(width for width in widths for _ in range(blocks))]
    return nn.Sequential(*(BasicBlock(*pair, project) for pair in pairwise(inputs)))


def resnet50(shape: Sequence[int], small: bool | None = None) -> ResNet:
    """ResNet-50, with the stem of :func:`resnet18`: 23,508,032 parameters and 2,048 features."""
    stem, stages, inputs = _stem(shape, small), nn.Sequential(), 64
    for width, blocks in ((64, 3), (128, 4), (256, 6), (512, 3)):
        for _ in range(blocks):
            stages.append(Bottleneck(inputs, width))
            inputs = 4 * width
    return ResNet(stem, stages, inputs)


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

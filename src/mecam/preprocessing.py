"""How images become the input of a network; readable without torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, Self, get_args

Interpolation = Literal["bilinear", "bicubic"]
Triple = tuple[float, float, float]

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


@dataclass(frozen=True)
class Preprocessing:
    """Resize to size x size, scale to [0, 1], and normalize by (x - mean) / std; the defaults are ImageNet's.

    Args:
        size: height and width of the network's input.
        mean, std: one value per channel.
        interpolation: resampling filter, bilinear or bicubic; both are antialiased.
    """

    size: int = 224
    mean: Triple = (0.485, 0.456, 0.406)
    std: Triple = (0.229, 0.224, 0.225)
    interpolation: Interpolation = "bilinear"

    def __post_init__(self) -> None:
        if self.size < 1:
            raise ValueError(f"size must be at least 1, got {self.size}")
        if not all(value > 0 for value in self.std):
            raise ValueError(f"std must be positive, got {self.std}")
        if self.interpolation not in get_args(Interpolation):
            raise ValueError(f"interpolation must be bilinear or bicubic, got {self.interpolation!r}")

    @classmethod
    def from_dict(cls, stored: Mapping[str, Any]) -> Self:
        """Read the entries of `to_dict` from a model's metadata; old files lack the interpolation."""
        interpolation = stored.get("interpolation", "bilinear")
        return cls(stored["image_size"], tuple(stored["mean"]), tuple(stored["std"]), interpolation)

    def to_dict(self) -> dict[str, Any]:
        return {
            "image_size": self.size,
            "interpolation": self.interpolation,
            "mean": list(self.mean),
            "std": list(self.std),
        }

    def describe(self) -> dict[str, Any]:
        """Return the values and the steps in words, for programs in other languages."""
        steps = [
            "apply the EXIF orientation, blend transparent parts with white, convert to 8-bit RGB",
            f"resize to {self.size} x {self.size} with Pillow's {self.interpolation.upper()} filter (antialiased), "
            "without keeping the aspect ratio",
            "divide by 255, subtract the mean and divide by the standard deviation of each channel",
            "arrange as channels, rows, columns",
        ]
        return {**self.to_dict(), "steps": steps}


IMAGENET = Preprocessing()

"""How images become the input of a network; readable without torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, Self, get_args

Interpolation = Literal["bilinear", "bicubic"]
Resize = Literal["squash", "crop", "letterbox"]
RESIZES: dict[Resize, str] = {  # in words, for programs in other languages
    "squash": "resize to {size} x {size} with {filter}, without keeping the aspect ratio",
    "crop": "cut out the largest central square and resize it to {size} x {size} with {filter}",
    "letterbox": "resize so that the longer side is {size} with {filter}, keeping the aspect ratio, and center on a "
    "black square of {size} x {size}",
}
Triple = tuple[float, float, float]
MOST = 4096  # pixels per side

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
        resize: what happens to an image that is not square: "squash" changes its aspect ratio, "crop" cuts out the
            central square, "letterbox" adds black bars.
    """

    size: int = 224
    mean: Triple = (0.485, 0.456, 0.406)
    std: Triple = (0.229, 0.224, 0.225)
    interpolation: Interpolation = "bilinear"
    resize: Resize = "squash"

    def __post_init__(self) -> None:
        if not isinstance(self.size, int) or not 1 <= self.size <= MOST:
            raise ValueError(f"size must be from 1 to {MOST}, got {self.size}")
        for name, triple in (("mean", self.mean), ("std", self.std)):
            if len(triple) != 3 or not all(isinstance(value, (int, float)) and abs(value) < 1e6 for value in triple):
                raise ValueError(f"{name} must be three finite numbers, got {triple}")
        if not all(value > 0 for value in self.std):
            raise ValueError(f"std must be positive, got {self.std}")
        if self.interpolation not in get_args(Interpolation):
            raise ValueError(f"interpolation must be bilinear or bicubic, got {self.interpolation!r}")
        if self.resize not in RESIZES:
            raise ValueError(f"resize must be {', '.join(RESIZES)}, got {self.resize!r}")

    @classmethod
    def from_dict(cls, stored: Mapping[str, Any]) -> Self:
        """Read the entries of `to_dict` from a model's metadata; old files lack the interpolation."""
        interpolation, resize = stored.get("interpolation", "bilinear"), stored.get("resize", "squash")
        return cls(stored["image_size"], tuple(stored["mean"]), tuple(stored["std"]), interpolation, resize)

    def to_dict(self) -> dict[str, Any]:
        return {
            "image_size": self.size,
            "interpolation": self.interpolation,
            "mean": list(self.mean),
            "std": list(self.std),
            **({} if self.resize == "squash" else {"resize": self.resize}),  # so that older models keep their bytes
        }

    def describe(self) -> dict[str, Any]:
        """Return the values and the steps in words, for programs in other languages."""
        steps = [
            "apply the EXIF orientation, blend transparent parts with white, convert to 8-bit RGB",
            RESIZES[self.resize].format(
                size=self.size, filter=f"Pillow's {self.interpolation.upper()} filter (antialiased)"
            ),
            "divide by 255, subtract the mean and divide by the standard deviation of each channel",
            "arrange as channels, rows, columns",
        ]
        return {**self.to_dict(), "steps": steps}


IMAGENET = Preprocessing()

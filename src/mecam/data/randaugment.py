"""RandAugment (Cubuk et al., 2020) for a batch: two random operations per image, on the device of the images.

Magnitude 9 of 30. Every operation is computed for all images and kept where it was drawn, so nothing waits for the
device. Shears and rotations are about the center; what they uncover is black.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from mecam.data.augment import SATURATION, Augmentation, Draws, _blend, _per_image

OPERATIONS = (
    *("brightness", "contrast", "saturation", "sharpness"),  # the first three are numbered as in `augment`
    *("shear_x", "shear_y", "translate_x", "translate_y", "rotate"),
    *("posterize", "solarize", "autocontrast", "equalize", "identity"),
)
ROUNDS = 2
MAGNITUDE = 9 / 30
# at magnitude 1; a translation of 2 is a side
BLEND, SHEAR, ROTATE, TRANSLATE = 0.9, 0.3, math.radians(30), 2 * 150 / 331
LEVELS = 2 ** (8 - round(4 * MAGNITUDE))  # of posterized colors
THRESHOLD = 1 - MAGNITUDE  # above it, solarize inverts


@dataclass(frozen=True)
class RandDraws(Draws):
    """The random values for each image of a batch."""

    operations: Tensor  # (B, ROUNDS) places in OPERATIONS
    signs: Tensor  # (B, ROUNDS) of the magnitude, -1 or 1


@dataclass(frozen=True)
class RandAugment(Augmentation):
    """Random crops and flips, and RandAugment in place of colour jitter and grayscale."""

    colors: bool = False

    def draw(
        self, images: Tensor, aspects: Tensor | None = None, *, generator: torch.Generator | None = None
    ) -> RandDraws:
        """Draw as `Augmentation.draw`, and two operations per image."""
        drawn = super().draw(images, aspects, generator=generator)
        uniform = torch.rand(len(images), ROUNDS, 2, dtype=torch.float32, device=images.device, generator=generator)
        operations = (uniform[..., 0] * len(OPERATIONS)).long().clamp(max=len(OPERATIONS) - 1)
        return RandDraws(**vars(drawn), operations=operations, signs=(uniform[..., 1] < 0.5) * 2.0 - 1)

    def _colours(self, images: Tensor, draws: Any) -> Tensor:
        x = super()._colours(images, draws)
        for operation, sign in zip(draws.operations.unbind(1), draws.signs.unbind(1), strict=True):
            x = operate(x, operation, sign)
        return x

    def _kernels(self, images: Tensor) -> None:
        """Return None: the Triton kernels have other operations."""


def operate(x: Tensor, operation: Tensor, sign: Tensor) -> Tensor:
    """Apply to each image (B, 3, size, size) in [0, 1] its operation, a place in OPERATIONS."""

    def chosen(name: str) -> Tensor:
        return operation == OPERATIONS.index(name)

    factor = 1 + sign * BLEND * MAGNITUDE
    moves = _moves(chosen, sign * MAGNITUDE)
    steps = (
        (operation <= SATURATION, _blend(x.clone(), operation, factor)),
        (chosen("sharpness"), torch.lerp(_smooth(x), x, _per_image(factor)).clamp_(0, 1)),
        ((operation >= OPERATIONS.index("shear_x")) & (operation <= OPERATIONS.index("rotate")), _moved(x, moves)),
        (chosen("posterize"), (x * LEVELS).floor_().clamp_(max=LEVELS - 1) / LEVELS),
        (chosen("solarize"), torch.where(x >= THRESHOLD, 1 - x, x)),
        (chosen("autocontrast"), _autocontrast(x)),
        (chosen("equalize"), _equalize(x)),
    )
    out = x
    for where, changed in steps:
        out = torch.where(_per_image(where), changed, out)
    return out


def _moves(chosen: Any, magnitude: Tensor) -> Tensor:
    """Return the affine maps (B, 2, 3) from places in the output to places in the input, which are in [-1, 1]."""
    amounts = {"rotate": ROTATE, **dict.fromkeys(("shear_x", "shear_y"), SHEAR)}
    amounts |= dict.fromkeys(("translate_x", "translate_y"), TRANSLATE)
    by = {name: chosen(name) * magnitude * amount for name, amount in amounts.items()}
    turn = by["rotate"]
    rows = [
        [turn.cos(), turn.sin() + by["shear_x"], by["translate_x"]],
        [by["shear_y"] - turn.sin(), turn.cos(), by["translate_y"]],
    ]
    return torch.stack([torch.stack(row, dim=1) for row in rows], dim=1)


def _moved(x: Tensor, maps: Tensor) -> Tensor:
    grid = F.affine_grid(maps, list(x.shape), align_corners=False)
    return F.grid_sample(x, grid, mode="bilinear", padding_mode="zeros", align_corners=False)


def _smooth(x: Tensor) -> Tensor:
    """Return the images blurred by Pillow's SMOOTH filter; their borders stay."""
    kernel = torch.ones(3, 1, 3, 3, dtype=x.dtype, device=x.device)
    kernel[:, :, 1, 1] = 5
    inner = F.conv2d(x, kernel / 13, groups=3)
    out = x.clone()
    out[:, :, 1:-1, 1:-1] = inner
    return out


def _autocontrast(x: Tensor) -> Tensor:
    """Stretch each channel to [0, 1]; constant ones stay."""
    low, high = x.amin((2, 3), keepdim=True), x.amax((2, 3), keepdim=True)
    return torch.where(high > low, (x - low) / (high - low), x)


def _equalize(x: Tensor) -> Tensor:
    """Equalize the histogram of each channel, as Pillow does."""
    levels = (x * 255).round_().long().flatten(2).flatten(0, 1)  # (B * 3, pixels)
    counts = levels.new_zeros(len(levels), 256).scatter_add_(1, levels, torch.ones_like(levels))
    brightest = counts.gather(1, levels.amax(1, keepdim=True))
    step = (levels.shape[1] - brightest) // 255
    below = counts.cumsum(1) - counts
    table = ((below + step // 2) // step.clamp(min=1)).clamp_(max=255)
    changed = table.gather(1, levels).to(x.dtype).div_(255).view_as(x)
    return torch.where(step.view(len(x), 3, 1, 1) > 0, changed, x)

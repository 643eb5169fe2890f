"""The embedded data set: seven shapes in four styles, drawn on demand with the same bytes on every machine."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mecam.data._outlines import OUTLINES
from mecam.data._styles import SIZE, STYLES, Draws, render
from mecam.data.splits import seed_hash


@dataclass(frozen=True, eq=False)
class ShapesSet:
    """The data set `shapes` in memory; the images of a domain are sorted by class."""

    seed: int
    per_class: int
    pixels: tuple[NDArray[np.uint8], ...]  # (7 * per_class, 3, 32, 32) per domain

    name = "shapes"
    domains = tuple(sorted(STYLES))
    classes = tuple(sorted(OUTLINES))
    size = (SIZE, SIZE)

    def labels(self, domain: int) -> NDArray[np.int64]:
        return np.arange(len(self.pixels[domain])) // self.per_class

    def aspects(self, domain: int) -> NDArray[np.float32]:
        return np.ones(len(self.pixels[domain]), dtype=np.float32)

    def sample_name(self, domain: int, index: int) -> str:
        label, number = divmod(range(len(self.pixels[domain]))[index], self.per_class)
        return f"{self.domains[domain]}/{self.classes[label]}/{number:04d}.png"

    def images(self, domain: int, indices: Sequence[int] | NDArray[np.integer]) -> Tensor:
        return torch.from_numpy(self.pixels[domain][np.asarray(indices, dtype=np.int64)])

    @cached_property
    def fingerprint(self) -> str:
        digest = hashlib.sha256(repr((self.name, self.domains, self.classes, self.per_class)).encode())
        for images in self.pixels:
            digest.update(images.tobytes())
        return digest.hexdigest()


@cache
def shapes(seed: int = 0, per_class: int = 80) -> ShapesSet:
    """Draw 4 domains x 7 classes x `per_class` images of 32 pixels, once per process."""
    return ShapesSet(
        seed,
        per_class,
        tuple(
            np.concatenate(
                [
                    render(Draws(seed_hash("shapes", seed, style, shape), per_class), STYLES[style], OUTLINES[shape])
                    for shape in ShapesSet.classes
                ]
            )
            for style in ShapesSet.domains
        ),
    )

"""The embedded data set: seven shapes in four styles, drawn on demand with the same bytes on every machine."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import cache, cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mecam.data._outlines import OUTLINES
from mecam.data._styles import SIZE, STYLES, Draws, render
from mecam.data.splits import seed_hash


class ShapesSet:
    """The data set `shapes`: 4 domains x 7 classes x `per_class` images of 32 pixels, sorted by class."""

    name = "shapes"
    domains = tuple(sorted(STYLES))
    classes = tuple(sorted(OUTLINES))
    size = (SIZE, SIZE)

    def __init__(self, seed: int = 0, per_class: int = 80) -> None:
        self.per_class = per_class
        self.pixels = [  # (7 * per_class, 3, 32, 32) per domain
            np.concatenate([_draw(seed, per_class, style, shape) for shape in self.classes]) for style in self.domains
        ]

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


def _draw(seed: int, count: int, style: str, shape: str) -> NDArray[np.uint8]:
    return render(Draws(seed_hash("shapes", seed, style, shape), count), STYLES[style], OUTLINES[shape])


@cache
def shapes(seed: int = 0, per_class: int = 80) -> ShapesSet:
    """Return the data set, which is drawn once per process."""
    return ShapesSet(seed, per_class)

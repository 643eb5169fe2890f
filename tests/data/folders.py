"""Folders of small images for the tests of stores."""

from pathlib import Path

import numpy as np
from PIL import Image

DOMAINS, CLASSES = ("art", "photo"), ("cat", "dog")


def make_folder(root: Path, *, each: int = 3, size: tuple[int, int] = (12, 16), seed: int = 0) -> Path:
    """`each` images of noise, (height, width), in two domains of two classes."""
    random = np.random.default_rng(seed)
    for domain in DOMAINS:
        for name in CLASSES:
            (root / domain / name).mkdir(parents=True)
            for number in range(each):
                save(root / domain / name / f"{number:04d}.png", random.integers(0, 256, (*size, 3), dtype=np.uint8))
    return root


def save(path: Path, pixels: np.ndarray) -> None:
    Image.fromarray(pixels).save(path)


def pixels_of(path: Path) -> np.ndarray:
    """(3, height, width) of a file, by Pillow alone."""
    with Image.open(path) as image:
        return np.asarray(image.convert("RGB")).transpose(2, 0, 1)

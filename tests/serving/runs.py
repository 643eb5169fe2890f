"""A small folder of images as users have them, and runs on it that take a second."""

from pathlib import Path

import numpy as np
from PIL import Image

DOMAINS, CLASSES, EACH = ("clinic", "home", "lab"), ("blue", "red"), 8
TINY = [  # options of mecam train
    *("--backbone", "resnet8", "--steps", "2"),
    *("--set", "image_size=32", "--set", "batch=4", "--set", "evaluate_every=1"),
]


def write_images(root: Path) -> Path:
    """Noise, reddish or bluish, 8 images a class and domain, as PNG and JPEG."""
    random = np.random.default_rng(0)
    for domain in DOMAINS:
        for name in CLASSES:
            (root / domain / name).mkdir(parents=True)
            for number in range(EACH):
                pixels = random.integers(0, 128, (40, 48, 3), dtype=np.uint8)
                pixels[..., 0 if name == "red" else 2] += 127
                ending = "png" if number % 2 else "jpg"
                Image.fromarray(pixels).save(root / domain / name / f"{number}.{ending}")
    return root

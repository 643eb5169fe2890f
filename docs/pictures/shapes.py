"""Draws docs/pictures/shapes.png: every class of the embedded set in every domain, two images each.

python docs/pictures/shapes.py
"""

from pathlib import Path

import numpy as np
from PIL import Image

from mecam.data.shapes import shapes

SCALE, EACH, GAP = 2, 2, 6


def main() -> None:
    data = shapes()
    side = data.size[0] * SCALE
    rows = []
    for domain in range(len(data.domains)):
        labels = data.labels(domain)
        row = []
        for label in range(len(data.classes)):
            for index in np.flatnonzero(labels == label)[:EACH]:
                pixels = data.images(domain, [int(index)])[0].permute(1, 2, 0).numpy()
                picture = Image.fromarray(pixels).resize((side, side), Image.Resampling.NEAREST)
                row += [np.asarray(picture), np.full((side, GAP, 3), 255, np.uint8)]
        rows += [np.concatenate(row[:-1], axis=1), np.full((GAP, sum(p.shape[1] for p in row[:-1]), 3), 255, np.uint8)]
    Image.fromarray(np.concatenate(rows[:-1])).save(Path(__file__).with_suffix(".png"), optimize=True)


if __name__ == "__main__":
    main()

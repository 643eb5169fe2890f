"""The embedded data set with other pixels."""

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from mecam.data.shapes import ShapesSet


def with_pixels(data: ShapesSet, pixels: Iterable[NDArray[np.uint8]]) -> ShapesSet:
    other = ShapesSet(per_class=1)
    other.per_class, other.pixels = data.per_class, list(pixels)
    return other

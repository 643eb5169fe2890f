"""Seven shapes as signed distances: negative inside, zero on the outline, a radius of about 1, y downwards.

Only + - * / sqrt, min and max are used: IEEE 754 fixes their bits, while a sine differs between C libraries.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray

Field = NDArray[np.float64]
Outline = Callable[[Field, Field], Field]


def _disc(x: Field, y: Field, radius: float, *, at: tuple[float, float] = (0.0, 0.0)) -> Field:
    return np.sqrt((x - at[0]) * (x - at[0]) + (y - at[1]) * (y - at[1])) - radius


def _circle(x: Field, y: Field) -> Field:
    return _disc(x, y, 0.85)


def _moon(x: Field, y: Field) -> Field:
    """Subtract a disc from another."""
    return np.maximum(_disc(x, y, 0.95, at=(0.1, 0.0)), -_disc(x, y, 0.78, at=(0.55, 0.0)))


def _heart(x: Field, y: Field) -> Field:
    """Join two discs with the upper sides of a wedge."""
    discs = np.minimum(_disc(x, y, 0.47, at=(-0.43, -0.32)), _disc(x, y, 0.47, at=(0.43, -0.32)))
    return np.minimum(discs, _WEDGE(x, y))


def _polygon(*corners: tuple[float, float]) -> Outline:
    """Return the distance to the nearest edge, negative where a ray to the right crosses an odd number of edges."""
    edges = list(zip(corners, corners[1:] + corners[:1], strict=True))

    def outline(x: Field, y: Field) -> Field:
        squared: Field = np.full(x.shape, np.inf)
        inside = np.zeros(x.shape, dtype=bool)
        for (ax, ay), (bx, by) in edges:
            ex, ey, wx, wy = bx - ax, by - ay, x - ax, y - ay
            along = np.clip((wx * ex + wy * ey) / (ex * ex + ey * ey), 0, 1)
            dx, dy = wx - ex * along, wy - ey * along
            squared = np.minimum(squared, dx * dx + dy * dy)
            if ey:
                inside ^= ((ay <= y) != (by <= y)) & (wx < wy * ex / ey)
        distance: Field = np.sqrt(squared)
        return np.where(inside, -distance, distance)

    return outline


_WEDGE = _polygon((0.0, -0.32), (0.76, 0.01), (0.0, 0.9), (-0.76, 0.01))

OUTLINES: Mapping[str, Outline] = {
    "circle": _circle,
    "cross": _polygon(
        *((0.28, -0.9), (0.28, -0.28), (0.9, -0.28), (0.9, 0.28), (0.28, 0.28), (0.28, 0.9)),
        *((-0.28, 0.9), (-0.28, 0.28), (-0.9, 0.28), (-0.9, -0.28), (-0.28, -0.28), (-0.28, -0.9)),
    ),
    "heart": _heart,
    "moon": _moon,
    "square": _polygon((-0.75, -0.75), (0.75, -0.75), (0.75, 0.75), (-0.75, 0.75)),
    "star": _polygon(
        *((0.0, -1.0), (0.2469, -0.3398), (0.9511, -0.309), (0.3995, 0.1298), (0.5878, 0.809)),
        *((0.0, 0.42), (-0.5878, 0.809), (-0.3995, 0.1298), (-0.9511, -0.309), (-0.2469, -0.3398)),
    ),
    "triangle": _polygon((0.0, -0.95), (0.9, 0.7), (-0.9, 0.7)),
}

"""Four styles for an outline on 32 x 32 pixels: photo, painting, cartoon, pencil sketch."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray

from mecam.data._outlines import Field, Outline

SIZE = 32
GRID_Y, GRID_X = np.meshgrid(np.arange(SIZE) + 0.5, np.arange(SIZE) + 0.5, indexing="ij")

Style = Callable[["Draws", Outline], Field]  # to (n, SIZE, SIZE, 3) in [0, 1]

PALETTES = np.array(  # six RGB palettes of two dark and two light colours
    [
        [[[0.07, 0.18, 0.42], [0.10, 0.36, 0.50]], [[0.95, 0.77, 0.18], [0.86, 0.88, 0.70]]],
        [[[0.70, 0.12, 0.10], [0.40, 0.08, 0.22]], [[0.96, 0.66, 0.24], [0.95, 0.86, 0.66]]],
        [[[0.12, 0.36, 0.22], [0.30, 0.18, 0.42]], [[0.92, 0.58, 0.70], [0.78, 0.88, 0.52]]],
        [[[0.42, 0.24, 0.10], [0.22, 0.30, 0.22]], [[0.92, 0.74, 0.42], [0.97, 0.93, 0.80]]],
        [[[0.34, 0.12, 0.50], [0.08, 0.10, 0.30]], [[0.30, 0.80, 0.80], [0.98, 0.86, 0.36]]],
        [[[0.05, 0.32, 0.40], [0.55, 0.14, 0.30]], [[0.98, 0.60, 0.50], [0.70, 0.86, 0.92]]],
    ]
)


class Draws:
    """Uniform numbers for n images, one row per image: an image does not depend on n.

    NumPy guarantees the stream of RandomState, and not that of Generator.
    """

    COLUMNS = 8192

    def __init__(self, seed: int, count: int) -> None:
        self._rows = np.random.RandomState(seed).random_sample((count, self.COLUMNS))
        self._used = 0

    def block(self, *shape: int) -> Field:
        """Return (n, *shape) in [0, 1)."""
        start, self._used = self._used, self._used + int(np.prod(shape))
        return self._rows[:, start : self._used].reshape(-1, *shape)

    def between(self, low: float, high: float) -> Field:
        """Return one number per image as (n, 1, 1)."""
        return low + (high - low) * self.block(1, 1)


def photo(draws: Draws, outline: Outline) -> Field:
    """Draw a shaded body with a soft shadow, blurred ground and sky, and sensor noise."""
    distance, x, y = _posed(draws, outline, radius=(9.0, 12.0), tilt=0.1)
    light_x, light_y = draws.between(-1, 1), draws.between(-1, 0)
    bright = draws.between(0, 1) < 0.5  # the scene; the body is then dark
    relief = 0.3 * (_noise(draws, 4) - 0.5) + 0.2 * (_noise(draws, 8) - 0.5) + 0.2 * (_noise(draws, 16) - 0.5)
    value = np.where(bright, draws.between(0.6, 0.8), draws.between(0.3, 0.5)) + relief
    ground = _colour(draws.between(0.05, 0.4), draws.between(0.15, 0.45), value)
    sky = _colour(draws.between(0.5, 0.65), draws.between(0.1, 0.4), value + draws.between(0.05, 0.2))
    horizon = draws.between(0.3, 0.8) * SIZE + draws.between(-0.15, 0.15) * (GRID_X - SIZE / 2)
    image = _over(sky, ground, _cover(horizon - GRID_Y, softness=4))
    shadow = _cover(outline(x + 0.25 * light_x, y - 0.25) * 10, softness=6)
    image = image * (1 - 0.45 * shadow)[..., None]
    body = np.where(bright, draws.between(0.15, 0.35), draws.between(0.75, 1))
    shade = body * (1.15 - 0.3 * ((x - light_x) * (x - light_x) + (y - light_y) * (y - light_y)) / 2)
    shade = shade + 0.12 * (_noise(draws, 12) - 0.5)
    image = _over(image, _colour(draws.between(0, 1), draws.between(0.2, 0.6), shade), _cover(distance, softness=2.0))
    return image + 0.1 * (draws.block(SIZE, SIZE, 3) - 0.5)


def art(draws: Draws, outline: Outline) -> Field:
    """Draw brush strokes in the colours of one palette, with irregular edges."""
    distance, _, _ = _posed(draws, outline, radius=(10.0, 13.0), tilt=0.15)
    palette = PALETTES[(draws.block() * len(PALETTES)).astype(int)]
    light_body = draws.block(1, 1, 1, 1) < 0.5
    dark, light = palette[:, 0, None, None], palette[:, 1, None, None]  # (n, 1, 1, 2, 3)
    body, ground = np.where(light_body, light, dark), np.where(light_body, dark, light)
    image = _over(ground[..., 0, :], ground[..., 1, :], _strokes(draws))
    painted = _over(body[..., 0, :], body[..., 1, :], _strokes(draws))
    edge = distance + 1.5 * (_noise(draws, 9) - 0.5)
    image = _over(image, painted, _cover(edge))
    return image * (0.85 + 0.3 * _noise(draws, 20))[..., None]


def cartoon(draws: Draws, outline: Outline) -> Field:
    """Draw one flat bright colour inside a thick dark line; the shape is stretched and fills the frame."""
    distance, _, _ = _posed(draws, outline, radius=(11.5, 14.0), tilt=0.25, stretch=0.2)
    image = _colour(draws.between(0, 1), draws.between(0.1, 0.7), draws.between(0.7, 1))
    fill = _colour(draws.between(0, 1), draws.between(0.75, 1), draws.between(0.75, 1))
    image = _over(image, fill, _cover(distance))
    line = _cover(np.abs(distance) - draws.between(0.9, 1.8))
    return _over(image, draws.between(0, 0.12)[..., None], line)


def sketch(draws: Draws, outline: Outline) -> Field:
    """Draw pencil lines of uneven pressure on white paper, without a fill."""
    distance, _, _ = _posed(draws, outline, radius=(9.0, 12.5), tilt=0.15)
    wobble = 1.2 * (_noise(draws, 7) - 0.5)
    line = _cover(np.abs(distance + wobble) - draws.between(0.25, 0.65))
    pressure = draws.between(0.65, 1) * (0.65 + 0.5 * _noise(draws, 6))
    paper = draws.between(0.94, 1) - 0.03 * draws.block(SIZE, SIZE)
    return np.repeat((paper * (1 - np.clip(line * pressure, 0, 1)))[..., None], 3, axis=-1)


STYLES: Mapping[str, Style] = {"art": art, "cartoon": cartoon, "photo": photo, "sketch": sketch}


def render(draws: Draws, style: Style, outline: Outline) -> NDArray[np.uint8]:
    """Return uint8 (n, 3, SIZE, SIZE)."""
    values = np.floor(np.clip(style(draws, outline), 0, 1) * 255 + 0.5).astype(np.uint8)
    return np.ascontiguousarray(values.transpose(0, 3, 1, 2))


def _posed(
    draws: Draws, outline: Outline, *, radius: tuple[float, float], tilt: float, stretch: float = 0.0
) -> tuple[Field, Field, Field]:
    """Place an outline at random; return the signed distance in pixels and the coordinates in its frame.

    `tilt` is the tangent of half the largest angle: 0.1 is 11 degrees, 0.25 is 28.
    """
    scale = draws.between(*radius)
    room = 0.8 * (SIZE / 2 - scale)
    dx = GRID_X - SIZE / 2 - room * draws.between(-1, 1)
    dy = GRID_Y - SIZE / 2 - room * draws.between(-1, 1)
    cosine, sine = _rotation(draws.between(-tilt, tilt))
    wide = 1 + draws.between(-stretch, stretch)
    x, y = (dx * cosine + dy * sine) / (scale * wide), (dy * cosine - dx * sine) / scale * wide
    return outline(x, y) * scale, x, y


def _rotation(half: Field) -> tuple[Field, Field]:
    """Return cosine and sine from the tangent of half the angle."""
    return (1 - half * half) / (1 + half * half), 2 * half / (1 + half * half)


def _noise(draws: Draws, cells: int) -> Field:
    """Return smooth noise in [0, 1): random values on a lattice of cells x cells, interpolated."""
    lattice = draws.block(cells + 1, cells + 1)
    return _blend(lattice, GRID_Y[None] / SIZE * cells, GRID_X[None] / SIZE * cells)


def _strokes(draws: Draws, length: int = 4, across: int = 20) -> Field:
    """Return noise stretched along a random direction, quantized to 0, 1/2, 1."""
    cosine, sine = _rotation(draws.between(-1, 1))
    dx, dy = GRID_X / SIZE - 0.5, GRID_Y / SIZE - 0.5
    along, over = dx * cosine + dy * sine, dy * cosine - dx * sine  # both within 0.71 of 0
    lattice = draws.block(across + 1, length + 1)
    value = _blend(lattice, (over / 1.5 + 0.5) * across, (along / 1.5 + 0.5) * length)
    steps: Field = np.clip(np.floor(value * 4 - 0.5), 0, 2)
    return steps / 2


def _blend(lattice: Field, row: Field, column: Field) -> Field:
    top, left = np.floor(row).astype(int), np.floor(column).astype(int)
    v, u = _smooth(row - top), _smooth(column - left)
    image = np.arange(len(lattice))[:, None, None]
    upper: Field = lattice[image, top, left] * (1 - u) + lattice[image, top, left + 1] * u
    lower: Field = lattice[image, top + 1, left] * (1 - u) + lattice[image, top + 1, left + 1] * u
    return upper * (1 - v) + lower * v


def _smooth(share: Field) -> Field:
    return share * share * (3 - 2 * share)


def _cover(distance: Field, softness: float = 1.0) -> Field:
    """Return the share of each pixel that lies inside."""
    covered: Field = np.clip(0.5 - distance / softness, 0, 1)
    return covered


def _over(below: Field, above: Field, cover: Field) -> Field:
    return below + (above - below) * cover[..., None]


def _colour(hue: Field, saturation: Field, value: Field) -> Field:
    """Convert HSV to RGB in a new last axis."""
    sector = np.stack([(turn + hue * 6) % 6 for turn in (5, 3, 1)], axis=-1)
    ramp: Field = np.clip(np.minimum(sector, 4 - sector), 0, 1)
    return value[..., None] * (1 - saturation[..., None] * ramp)

"""A calibration plot as inline SVG: accuracy against confidence."""

from __future__ import annotations

from collections.abc import Sequence

from mecam.serving.tally import Bin

WIDTH, HEIGHT, LEFT, TOP, RIGHT, FOOT = 360, 300, 42, 26, 350, 264
WORDS = (
    "A point is a group of predictions of similar confidence, as large as its share of the images. Below the line the "
    "model is too sure, above it not sure enough."
)


def calibration_plot(bins: Sequence[Bin]) -> str:
    """Return the plot and what it shows, as HTML; nothing without predictions."""
    if not bins:
        return ""
    ticks = [(place, f"{100 * place:g}") for place in (0, 0.25, 0.5, 0.75, 1)]
    lines = [_line(0, 0, 1, 1, "diagonal"), *(_line(0, place, 1, place, "grid") for place, _ in ticks)]
    words = [_text(LEFT - 6, _y(place) + 4, name, "end") for place, name in ticks]
    words += [_text(_x(place), FOOT + 16, name, "end" if place == 1 else "middle") for place, name in ticks]
    words += [_text((LEFT + RIGHT) / 2, HEIGHT - 4, "confidence, %", "middle"), _text(2, 10, "accuracy, %", "start")]
    most = max(one.images for one in bins)
    inside = "".join([*lines, *words, *(_point(one, most) for one in bins)])
    picture = f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="Accuracy against confidence">{inside}</svg>'
    return f'<figure class="calibration">{picture}<figcaption>{WORDS}</figcaption></figure>'


def _x(share: float) -> float:
    return LEFT + share * (RIGHT - LEFT)


def _y(share: float) -> float:
    return FOOT - share * (FOOT - TOP)


def _point(one: Bin, most: int) -> str:
    place = f'cx="{_x(one.confidence):.1f}" cy="{_y(one.accuracy):.1f}" r="{2.5 + 7 * (one.images / most) ** 0.5:.1f}"'
    words = f"{one.images:,} images: {100 * one.accuracy:.1f} % right at {100 * one.confidence:.1f} % confidence"
    return f"<circle {place}><title>{words}</title></circle>"


def _line(x1: float, y1: float, x2: float, y2: float, kind: str) -> str:
    return f'<line x1="{_x(x1):.1f}" y1="{_y(y1):.1f}" x2="{_x(x2):.1f}" y2="{_y(y2):.1f}" class="{kind}"/>'


def _text(x: float, y: float, words: str, anchor: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{words}</text>'

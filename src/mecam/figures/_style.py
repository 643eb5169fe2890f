"""Style of the figures: a colour-blind safe palette, a mark per colour, one legend, percent."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING, Any

from mecam.figures.points import Line

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST = 8  # lines in a figure: as many colours and marks as readers can distinguish
# Okabe and Ito's colours, the yellow darkened to be seen on white
COLOURS = ("#D55E00", "#0072B2", "#009E73", "#CC79A7", "#56B4E9", "#A88B00", "#000000", "#E69F00")
MARKS = ("o", "s", "^", "D", "v", "P", "X", "*")
SLOTS = {"mecam": 0, "sam": 1, "gam": 2, "sagm": 3, "fad": 4, "crsam": 5, "adam": 6, "fsam": 7}
SETTINGS = {
    "font.size": 9, "axes.titlesize": 10, "axes.spines.top": False, "axes.spines.right": False, "axes.grid": True,
    "axes.axisbelow": True, "grid.color": "0.88", "grid.linewidth": 0.6, "legend.frameon": False,
    "text.parse_math": False,  # names of folders are not formulas
    "svg.hashsalt": "mecam",  # the same figure has the same bytes
}  # fmt: skip


@dataclass(frozen=True)
class Look:
    """A colour and a mark."""

    colour: str
    mark: str

    @property
    def filled(self) -> dict[str, Any]:
        return {"color": self.colour, "marker": self.mark, "markersize": 5.5, "linestyle": "none"}

    @property
    def hollow(self) -> dict[str, Any]:
        return {**self.filled, "markerfacecolor": "white", "markersize": 6.5, "markeredgewidth": 1.2}


Entries = Mapping[str, Mapping[str, Any]]  # a legend's names, and how their marks are drawn
KINDS = {"MeCAM": Look(COLOURS[0], "o"), "method": Look(COLOURS[1], "s"), "optimizer": Look(COLOURS[2], "^")}


def looks(optimizers: Sequence[str]) -> list[Look]:
    """Return a look per line; the paper's optimizers have the same one in every figure."""
    free = [slot for slot in range(MOST) if slot not in {SLOTS.get(name) for name in optimizers}]
    slots: list[int] = []
    for name in optimizers:
        slot = SLOTS.get(name)
        slots.append((free.pop(0) if free else 0) if slot is None or slot in slots else slot)
    return [Look(COLOURS[slot], MARKS[slot]) for slot in slots]


def titled(figure: Figure, title: str, note: str = "", entries: Entries | None = None) -> Figure:
    """Add the title, the legend below it, and a note at the foot."""
    if entries:
        from matplotlib.lines import Line2D

        handles = [Line2D([], [], **look) for look in entries.values()]
        down = math.ceil(len(entries) / max(2, int(figure.get_figwidth() / 1.6)))
        across = math.ceil(len(entries) / down)
        names: Any = [short(name, 60) for name in entries]
        figure.legend(handles, names, loc="outside upper center", ncols=across, title=title, title_fontsize=11)
    else:
        figure.suptitle(title, fontsize=11)
    if note:
        wrapped = textwrap.wrap(note, int(figure.get_figwidth() * 15))
        figure.supxlabel("\n".join(wrapped), fontsize=7.5, color="0.35")
    return figure


def draw_line(axes: Axes, line: Line, look: Look) -> None:
    """Draw a line with the standard error over seeds as bars; published values are hollow."""
    x, mean = [point.x for point in line.points], [point.mean for point in line.points]
    spread = [point.spread or 0 for point in line.points] if any(point.spread for point in line.points) else None
    width, order = (2.0, 3) if line.optimizer == "mecam" else (1.2, 2)
    style = {**look.filled, "linestyle": "-", "linewidth": width, "markersize": 4.5 if len(x) < 15 else 0}
    axes.errorbar(x, mean, spread, **style, elinewidth=0.8, capsize=1.5, zorder=order)
    for point in line.published:
        axes.plot(point.x, point.mean, **look.hollow, zorder=4)


def line_entries(looks: Mapping[str, Look], *, published: bool = False) -> Entries:
    """Return the legend of lines."""
    entries = {name: {**look.filled, "linestyle": "-"} for name, look in looks.items()}
    return {**entries, **({"published": Look("0.3", "o").hollow} if published else {})}


def short(name: str, most: int = 44) -> str:
    return name if len(name) <= most else f"{name[: most - 1]}…"


def label_points(
    axes: Axes, places: Sequence[tuple[float, float]], names: Sequence[str], drawn: Sequence[Sequence[float]]
) -> None:
    """Write each name beside its point, where it covers least of the other names and of the boxes already `drawn`."""
    figure = axes.get_figure(root=True)
    assert figure is not None
    figure.draw_without_rendering()  # so that limits and sizes are final
    points = axes.transData.transform(places)
    corners = axes.transData.transform([corner for box in drawn for corner in (box[:2], box[2:])])
    taken = [(*low - MARK, *high + MARK) for low, high in zip(corners[::2], corners[1::2], strict=True)]
    bounds = axes.get_window_extent()
    for place, name, (x, y) in zip(places, names, points, strict=True):
        text = axes.annotate(
            short(name, 24), place, xytext=(0, 0), textcoords="offset points", fontsize=7, zorder=4,
            arrowprops={"arrowstyle": "-", "color": "0.6", "linewidth": 0.5, "shrinkA": 0, "shrinkB": 3},
        )  # fmt: skip
        box = text.get_window_extent()
        tried = [_beside(x, y, dx, dy, box.width, box.height) for dx, dy in OFFSETS]
        inside = [b for b in tried if b[0] > bounds.x0 and b[2] < bounds.x1 and b[1] > bounds.y0 and b[3] < bounds.y1]
        # the nearest of equals
        best = min(inside or tried, key=lambda box: sum(_overlap(box, other) for other in taken))
        taken.append(best)
        text.set_position(((best[0] - x) * 72 / figure.dpi, (best[1] - y) * 72 / figure.dpi))


MARK = 3  # half the size of a mark, in pixels
OFFSETS = [(dx * far, dy * far) for far in (8, 16, 28, 44) for dx, dy in product((1, 0, -1), repeat=2) if dx or dy]


def _beside(x: float, y: float, dx: float, dy: float, width: float, height: float) -> tuple[float, float, float, float]:
    """Return the box (left, low, right, high) of a text at an offset from a point."""
    left = x + dx if dx > 0 else x + dx - width if dx < 0 else x - width / 2
    low = y + dy if dy > 0 else y + dy - height if dy < 0 else y - height / 2
    return left, low, left + width, low + height


def _overlap(one: Sequence[float], other: Sequence[float]) -> float:
    """Return the area that two boxes (left, low, right, high) share, in pixels."""
    width = min(one[2], other[2]) - max(one[0], other[0])
    height = min(one[3], other[3]) - max(one[1], other[1])
    return width * height if width > 0 and height > 0 else 0.0

"""Style of the figures: a colour-blind safe palette, a mark per colour, one legend, percent."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np

from mecam.figures.points import Line

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.transforms import Bbox

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
KINDS = {
    "methods under Adam": Look(COLOURS[1], "s"), "optimizers": Look(COLOURS[2], "^"), "MeCAM": Look(COLOURS[0], "o"),
}  # fmt: skip
MARK = 3  # half the size of a mark, in pixels
# offsets of a name from its point, nearest first
OFFSETS = [np.array(d) * far for far in (8, 16, 28, 44) for d in product((1, 0, -1), repeat=2) if any(d)]


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


def draw_lines(panels: Mapping[Axes, Sequence[Line]]) -> Entries:
    """Draw the lines of each panel with standard errors as bars; published values are hollow. Return the legend."""
    every = [line for lines in panels.values() for line in lines]
    optimizers = {line.name: line.optimizer for line in every}
    looks = dict(zip(optimizers, _looks(list(optimizers.values())), strict=True))
    for axes, line in ((axes, line) for axes, lines in panels.items() for line in lines):
        look = looks[line.name]
        x, mean = [point.x for point in line.points], [point.mean for point in line.points]
        spread = [point.spread or 0 for point in line.points] if any(point.spread for point in line.points) else None
        width, order = (2.0, 3) if line.optimizer == "mecam" else (1.2, 2)
        style = {**look.filled, "linestyle": "-", "linewidth": width, "markersize": 4.5 if len(x) < 15 else 0}
        axes.errorbar(x, mean, spread, **style, elinewidth=0.8, capsize=1.5, zorder=order)
        for point in line.published:
            axes.plot(point.x, point.mean, **look.hollow, zorder=4)
    published = {"published": Look("0.3", "o").hollow} if any(line.published for line in every) else {}
    return {**{name: {**look.filled, "linestyle": "-"} for name, look in looks.items()}, **published}


def _looks(optimizers: Sequence[str]) -> list[Look]:
    """Return a look per line; the paper's optimizers have the same one in every figure."""
    free = [slot for slot in range(MOST) if slot not in {SLOTS.get(name) for name in optimizers}]
    slots: list[int] = []
    for name in optimizers:
        slot = SLOTS.get(name)
        slots.append((free.pop(0) if free else 0) if slot is None or slot in slots else slot)
    return [Look(COLOURS[slot], MARKS[slot]) for slot in slots]


def short(name: str, most: int = 44) -> str:
    return name if len(name) <= most else f"{name[: most - 1]}…"


def label_points(
    axes: Axes, places: Sequence[tuple[float, float]], names: Sequence[str], drawn: Sequence[Bbox]
) -> None:
    """Write each name beside its point, where it covers least of the other names and of the boxes already `drawn`."""
    from matplotlib.transforms import Bbox

    figure = axes.get_figure(root=True)
    assert figure is not None
    figure.draw_without_rendering()  # so that limits and sizes are final
    taken = [axes.transData.transform_bbox(box).padded(MARK) for box in drawn]
    bounds = axes.get_window_extent()

    def covered(box: Bbox) -> float:
        shared = (Bbox.intersection(box, other) for other in taken)
        return sum(common.width * common.height for common in shared if common is not None)

    for place, name in zip(places, names, strict=True):
        text = axes.annotate(
            short(name, 24), place, xytext=(0, 0), textcoords="offset points", fontsize=7, zorder=4,
            arrowprops={"arrowstyle": "-", "color": "0.6", "linewidth": 0.5, "shrinkA": 0, "shrinkB": 3},
        )  # fmt: skip
        size = text.get_window_extent().size
        point = axes.transData.transform(place)
        corners = [point + offset - size * (1 - np.sign(offset)) / 2 for offset in OFFSETS]
        tried = [Bbox([corner, corner + size]) for corner in corners]
        inside = [box for box in tried if bounds.fully_contains(*box.min) and bounds.fully_contains(*box.max)]
        best = min(inside or tried, key=covered)  # the nearest of equals
        taken.append(best)
        text.set_position(tuple((best.min - point) * 72 / figure.dpi))

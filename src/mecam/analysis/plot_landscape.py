"""Landscapes of several networks side by side on one colour scale, as in the paper's Figure 4."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from mecam.analysis._figure import new_figure, save
from mecam.analysis.landscape import Landscape

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FORMATS = ("png", "svg")
COLOURS = "viridis"
STEEP = 20.0  # the highest loss over the lowest from which on colours follow the logarithm of the loss
Marks = Mapping[str, tuple[float, float]]  # named points of a plane


def plot(landscapes: Mapping[str, Landscape], stem: Path | str, *, marks: Marks | None = None) -> list[Path]:
    """Write <stem>-contour and <stem>-surface, or <stem>-line for lines, as PNG and SVG."""
    if not landscapes:
        raise ValueError("there is no landscape to plot")
    if len({len(one.y) == 1 for one in landscapes.values()}) > 1:
        raise ValueError("some of the landscapes are lines and some are planes; plot them separately")
    if next(iter(landscapes.values())).y == (0.0,):
        figures = {"line": lines(landscapes)}
    else:
        figures = {"contour": contours(landscapes, marks=marks), "surface": surfaces(landscapes)}
    return [save(figure, f"{stem}-{name}.{kind}") for name, figure in figures.items() for kind in FORMATS]


def contours(landscapes: Mapping[str, Landscape], *, marks: Marks | None = None) -> Figure:
    """Draw contours labelled with the loss; white where it is not finite."""
    figure = new_figure(width=1 + 3.6 * len(landscapes), height=3.8)
    levels, norm = _scale(landscapes)
    panels: list[Axes] = list(figure.subplots(1, len(landscapes), squeeze=False)[0])
    for axes, (name, one) in zip(panels, landscapes.items(), strict=True):
        loss = np.ma.masked_invalid(one.loss)
        filled = axes.contourf(one.x, one.y, loss, levels=levels, norm=norm, cmap=COLOURS)
        drawn = axes.contour(one.x, one.y, loss, levels=levels[1:-1:2], colors="white", linewidths=0.6)
        axes.clabel(drawn, fontsize=6, fmt="%.3g")
        axes.set(title=_title(name, one), aspect="equal", xlabel="first direction", ylabel="second direction")
        for label, (x, y) in (marks or {}).items():
            axes.plot([x], [y], "o", color="red", markersize=4)
            axes.annotate(label, (x, y), textcoords="offset points", xytext=(4, 4), fontsize=7, color="red")
    figure.colorbar(filled, ax=panels, label="loss", format="%.3g")
    return figure


def surfaces(landscapes: Mapping[str, Landscape]) -> Figure:
    """Draw surfaces on one scale of height; the logarithm of the loss where it is steep."""
    figure = new_figure(width=0.8 + 3.8 * len(landscapes), height=3.8)
    levels, _ = _scale(landscapes)
    steep = _is_steep(levels)
    low, high = (math.log10(level) if steep else level for level in (levels[0], levels[-1]))
    panels = []
    for place, (name, one) in enumerate(landscapes.items(), start=1):
        axes: Any = figure.add_subplot(1, len(landscapes), place, projection="3d")
        x, y = np.meshgrid(one.x, one.y)
        height = np.log10(np.maximum(one.loss, levels[0])) if steep else one.loss
        drawn = axes.plot_surface(x, y, height, cmap=COLOURS, vmin=low, vmax=high, rcount=60, ccount=60, linewidth=0)
        axes.set(title=_title(name, one), zlim=(low, high), xlabel="first", ylabel="second")
        panels.append(axes)
    figure.colorbar(drawn, ax=panels, shrink=0.7, pad=0.08, label="log₁₀ loss" if steep else "loss")
    return figure


def lines(landscapes: Mapping[str, Landscape]) -> Figure:
    """Draw the loss along one direction."""
    figure = new_figure()
    levels, _ = _scale(landscapes)
    axes = figure.add_subplot(xlabel="distance", ylabel="loss", yscale="log" if _is_steep(levels) else "linear")
    for name, one in landscapes.items():
        axes.plot(one.x, one.loss[0], label=_title(name, one))
    axes.legend()
    return figure


def _scale(landscapes: Mapping[str, Landscape], count: int = 25) -> tuple[NDArray[np.float64], Any]:
    """Return levels from the lowest to the highest loss, and the colour norm for them."""
    from matplotlib.colors import LogNorm, Normalize

    finite = np.concatenate([one.loss[np.isfinite(one.loss)] for one in landscapes.values()])
    if not finite.size:
        raise ValueError("no loss is finite on these landscapes: there is nothing to plot")
    low, high = float(finite.min()), float(finite.max())
    if low == high:
        high = low + (abs(low) or 1.0) * 1e-6
    if _is_steep((low, high)):
        return np.geomspace(low, high, count), LogNorm(low, high)
    return np.linspace(low, high, count), Normalize(low, high)


def _is_steep(levels: Sequence[float] | NDArray[np.float64]) -> bool:
    return bool(levels[0] > 0 and levels[-1] > STEEP * levels[0])


def _title(name: str, one: Landscape) -> str:
    return f"{name} ({one.holes} not finite)" if one.holes else name

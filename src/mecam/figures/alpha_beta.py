"""Supplementary Figure I(b): MeCAM's accuracy for alpha against beta, SAM's as the reference."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from mecam.analysis._figure import new_figure
from mecam.benchmark import paper
from mecam.benchmark.results import Result
from mecam.benchmark.tables import rows
from mecam.figures import _style
from mecam.figures.points import Missing, Point, departures, main_data, over_targets, row_name, target_words
from mecam.figures.sweeps import published_point, shared_targets, sweeps

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COMMAND = "mecam bench recipes/figure_alpha_beta.toml --out RESULTS"


@dataclass(frozen=True)
class Grid:
    """Accuracies by alpha and beta, over targets that all of them have."""

    data: str
    name: str
    targets: str
    cells: Mapping[tuple[float, float], Point]
    sam: Point | None
    published: float | None  # at the paper's alpha and beta
    departures: str  # from the settings behind it


def values(results: Sequence[Result]) -> Grid:
    """Return the largest grid on one data set, MeCAM's first."""
    table = rows(results)
    grids = sweeps([(row.key, row.results[0].recipe) for row in table], ("alpha", "beta"))
    grids = [sweep for sweep in grids if shared_targets(sweep, table)]
    if not grids:
        raise Missing("there are no finished runs that differ in alpha and beta alone", COMMAND)
    data = main_data(sweep.data for sweep in grids for _ in sweep.rows)
    best = max(
        (sweep for sweep in grids if sweep.data == data),
        key=lambda sweep: (table[sweep.rows[0].row].key.optimizer == "mecam", len(sweep.rows)),
    )
    targets = shared_targets(best, table)
    sam = None if best.reference is None else over_targets(table[best.reference], targets)
    means = {(entry.values[0], entry.values[1]): over_targets(table[entry.row], targets) for entry in best.rows}
    cells = {place: point for place, point in means.items() if point is not None}
    first = table[best.rows[0].row]
    words = target_words(targets, len(first.cells) - 1)
    beside = published_point(first, targets, "alpha", "beta")
    differing = departures([first] if beside else [], but=("alpha", "beta"))
    return Grid(data, row_name(first.key), words, cells, sam, beside[0].mean if beside else None, differing)


def draw(grid: Grid) -> Figure:
    """Draw a heat map with the numbers in it."""
    alphas, betas = (sorted({key[axis] for key in grid.cells}) for axis in (0, 1))
    means = np.full((len(alphas), len(betas)), math.nan)
    for (alpha, beta), point in grid.cells.items():
        means[alphas.index(alpha), betas.index(beta)] = point.mean
    figure = new_figure(width=2.6 + 0.95 * len(betas), height=2.0 + 0.75 * len(alphas))
    axes = figure.add_subplot(xlabel="beta", ylabel="alpha")
    axes.grid(visible=False)
    drawn = axes.imshow(means, cmap="cividis", origin="lower", aspect="auto")
    axes.set_xticks(range(len(betas)), [f"{beta:g}" for beta in betas])
    axes.set_yticks(range(len(alphas)), [f"{alpha:g}" for alpha in alphas])
    middle = (np.nanmin(means) + np.nanmax(means)) / 2
    for (alpha, beta), point in grid.cells.items():
        colour = "black" if point.mean > middle else "white"
        x, y, words = betas.index(beta), alphas.index(alpha), _words(point, between="\n")
        axes.text(x, y, words, ha="center", va="center", color=colour, fontsize=8.5)
    bar = figure.colorbar(drawn, ax=axes, label=f"accuracy, % ({grid.targets})")
    bar.outline.set_visible(False)
    return _style.titled(figure, f"{grid.name} on {grid.data}: alpha and beta", "; ".join(_notes(grid)))


def _notes(grid: Grid) -> list[str]:
    notes = []
    if grid.sam is not None:
        above = sum(point.mean > grid.sam.mean for point in grid.cells.values())
        notes = [f"SAM: {_words(grid.sam, between=' ')}", f"{above} of {len(grid.cells)} cells are above SAM"]
    if grid.published is not None:
        settings = paper.settings_of(grid.data)
        notes.append(f"published at alpha {settings['alpha']:g}, beta {settings['beta']:g}: {grid.published:.1f}")
    return [*notes, grid.departures] if grid.departures else notes


def _words(point: Point, between: str) -> str:
    return f"{point.mean:.1f}" + ("" if point.spread is None else f"{between}± {point.spread:.1f}")

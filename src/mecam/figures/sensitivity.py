"""Supplementary Figure I: (a) accuracy against rho; (b) MeCAM's accuracy for alpha against beta, beside SAM's."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from mecam.analysis._figure import new_figure
from mecam.benchmark import paper
from mecam.benchmark.results import Result
from mecam.benchmark.tables import Row, rows
from mecam.figures import _style, points
from mecam.figures.points import Line, Missing, Point
from mecam.figures.sweeps import Sweep, published_point, shared_targets, sweeps, without_settings

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Rho:
    """A line per optimizer whose rho was swept, over targets that all points have."""

    data: str
    targets: str
    lines: tuple[Line, ...]
    note: str


@dataclass(frozen=True)
class Grid:
    """Accuracies by alpha and beta, over targets that all of them have."""

    data: str
    name: str
    targets: str
    cells: Mapping[tuple[float, float], Point]
    sam: Point | None
    note: str


def rho_lines(results: Sequence[Result]) -> Rho:
    """Return the lines to draw."""
    table = rows(results)
    chosen = [sweep for sweep in sweeps(table, ("rho",)) if len(_radii(sweep, table)) > 1]
    chosen = _on_main_data(chosen, table, Missing("there are no finished runs that differ in rho alone", "figure_rho"))
    chosen.sort(key=lambda s: (-len(s.rows), points.in_paper_order(table[s.rows[0].row].key.optimizer)))
    targets = shared_targets(chosen[0], table)
    kept: list[Sweep] = []
    for sweep in chosen:  # as long as they have a target in common
        common = targets & shared_targets(sweep, table)
        if common and len(kept) < _style.MOST:
            kept, targets = [*kept, sweep], common
    firsts = [table[sweep.rows[0].row] for sweep in kept]
    keys = [without_settings(row.key, ("rho",)) for row in firsts]
    lines = []
    for sweep, first, key, name in zip(kept, firsts, keys, points.named(keys), strict=True):
        means = [points.over_targets(row, targets, radius) for radius, row in _radii(sweep, table)]
        finished = sorted((point for point in means if point is not None), key=lambda point: point.x)
        lines.append(Line(name, key.optimizer, tuple(finished), published_point(first, targets, "rho")))
    compared = [row for row, line in zip(firsts, lines, strict=True) if line.published]
    over = points.target_words(targets, len(firsts[0].cells) - 1)
    return Rho(firsts[0].key.data, over, tuple(lines), points.departures(compared, but=("rho",)))


def draw_rho(rho: Rho) -> Figure:
    """Draw one panel with rho on a logarithmic axis."""
    figure = new_figure(width=6.0, height=4.2)
    axes = figure.add_subplot(xscale="log", xlabel="rho", ylabel=f"accuracy, % ({rho.targets})")
    entries = _style.draw_lines({axes: rho.lines})
    ticks = sorted({point.x for line in rho.lines for point in line.points})
    axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.minorticks_off()
    return _style.titled(figure, f"Accuracy against rho on {rho.data}", rho.note, entries)


def alpha_beta_grid(results: Sequence[Result]) -> Grid:
    """Return the largest grid on one data set, MeCAM's first."""
    table = rows(results)
    missing = Missing("there are no finished runs that differ in alpha and beta alone", "figure_alpha_beta")
    best = max(
        _on_main_data(sweeps(table, ("alpha", "beta")), table, missing),
        key=lambda sweep: (table[sweep.rows[0].row].key.optimizer == "mecam", len(sweep.rows)),
    )
    targets, first = shared_targets(best, table), table[best.rows[0].row]
    sam = None if best.reference is None else points.over_targets(table[best.reference], targets)
    means = {(entry.values[0], entry.values[1]): points.over_targets(table[entry.row], targets) for entry in best.rows}
    cells = {place: point for place, point in means.items() if point is not None}
    notes = []
    if sam is not None:
        above = sum(point.mean > sam.mean for point in cells.values())
        notes = [f"SAM: {_words(sam, between=' ')}", f"{above} of {len(cells)} cells are above SAM"]
    for published in published_point(first, targets, "alpha", "beta"):
        theirs = paper.settings_of(first.key.data)
        notes.append(f"published at alpha {theirs['alpha']:g}, beta {theirs['beta']:g}: {published.mean:.1f}")
        notes.append(points.departures([first], but=("alpha", "beta")))
    words = points.target_words(targets, len(first.cells) - 1)
    return Grid(first.key.data, points.row_name(first.key), words, cells, sam, "; ".join(filter(None, notes)))


def draw_grid(grid: Grid) -> Figure:
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
    return _style.titled(figure, f"{grid.name} on {grid.data}: alpha and beta", grid.note)


def _radii(sweep: Sweep, table: Sequence[Row]) -> list[tuple[float, Row]]:
    """Return the rows with finished runs, by their rho; 0 has no place on a logarithmic axis."""
    of_sweep = ((entry.values[0], table[entry.row]) for entry in sweep.rows)
    return [(radius, row) for radius, row in of_sweep if radius > 0 and row.values]


def _on_main_data(among: Sequence[Sweep], table: Sequence[Row], missing: Missing) -> list[Sweep]:
    """Return the sweeps with a target that all rows have, on one data set; raise `missing` without any."""
    drawable = [sweep for sweep in among if shared_targets(sweep, table)]
    if not drawable:
        raise missing
    data = points.main_data(sweep.data for sweep in drawable for _ in sweep.rows)
    return [sweep for sweep in drawable if sweep.data == data]


def _words(point: Point, between: str) -> str:
    return f"{point.mean:.1f}" + ("" if point.spread is None else f"{between}± {point.spread:.1f}")

"""Supplementary Figure I(a): accuracy against rho."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mecam.analysis._figure import new_figure
from mecam.benchmark.results import Result
from mecam.benchmark.tables import Row, rows
from mecam.figures import _style, points
from mecam.figures.sweeps import Sweep, published_point, shared_targets, sweeps, without_settings

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COMMAND = "mecam bench recipes/figure_rho.toml --out RESULTS"


@dataclass(frozen=True)
class Rho:
    """A line per optimizer whose rho was swept, over targets that all points have."""

    data: str
    targets: str
    lines: tuple[points.Line, ...]
    note: str


def values(results: Sequence[Result]) -> Rho:
    """Return the lines to draw."""
    table = rows(results)
    drawable = sweeps([(row.key, row.results[0].recipe) for row in table], ("rho",))
    drawable = [sweep for sweep in drawable if _can_be_drawn(sweep, table)]
    if not drawable:
        raise points.Missing("there are no finished runs that differ in rho alone", COMMAND)
    data = points.main_data(sweep.data for sweep in drawable for _ in sweep.rows)
    chosen = [sweep for sweep in drawable if sweep.data == data]
    chosen.sort(key=lambda s: (-len(s.rows), points.in_paper_order(table[s.rows[0].row].key.optimizer)))
    targets = shared_targets(chosen[0], table)
    kept: list[Sweep] = []
    for sweep in chosen:  # as long as they have a target in common
        common = targets & shared_targets(sweep, table)
        if common and len(kept) < _style.MOST:
            kept, targets = [*kept, sweep], common
    keys = [without_settings(table[sweep.rows[0].row].key, ("rho",)) for sweep in kept]
    lines = []
    for sweep, key, name in zip(kept, keys, points.named(keys), strict=True):
        radii = [(entry.row, entry.values[0]) for entry in sweep.rows if entry.values[0] > 0]
        means = [points.over_targets(table[row], targets, radius) for row, radius in radii]
        finished = sorted((point for point in means if point is not None), key=lambda point: point.x)
        beside = published_point(table[sweep.rows[0].row], targets, "rho")
        lines.append(points.Line(name, key.optimizer, tuple(finished), beside))
    firsts = [table[sweep.rows[0].row] for sweep in kept]
    compared = [row for row, line in zip(firsts, lines, strict=True) if line.published]
    over = points.target_words(targets, len(firsts[0].cells) - 1)
    return Rho(data, over, tuple(lines), points.departures(compared, but=("rho",)))


def draw(rho: Rho) -> Figure:
    """Draw one panel with rho on a logarithmic axis."""
    figure = new_figure(width=6.0, height=4.2)
    axes = figure.add_subplot(xscale="log", xlabel="rho", ylabel=f"accuracy, % ({rho.targets})")
    names = [line.name for line in rho.lines]
    looks = dict(zip(names, _style.looks([line.optimizer for line in rho.lines]), strict=True))
    for line in rho.lines:
        _style.draw_line(axes, line, looks[line.name])
    ticks = sorted({point.x for line in rho.lines for point in line.points})
    axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.minorticks_off()
    entries = _style.line_entries(looks, published=any(line.published for line in rho.lines))
    return _style.titled(figure, f"Accuracy against rho on {rho.data}", rho.note, entries)


def _can_be_drawn(sweep: Sweep, table: Sequence[Row]) -> bool:
    """Return whether two radii above 0 have finished runs on one target."""
    finished = [entry for entry in sweep.rows if table[entry.row].values and entry.values[0] > 0]
    return len(finished) > 1 and bool(shared_targets(sweep, table))

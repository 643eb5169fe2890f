"""Supplementary Figure I(a): accuracy against rho."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from mecam.analysis._figure import new_figure
from mecam.benchmark.results import Result
from mecam.benchmark.tables import Row, rows
from mecam.figures import _style
from mecam.figures.points import (
    Line,
    Missing,
    departures,
    in_paper_order,
    main_data,
    named,
    over_targets,
    target_words,
)
from mecam.figures.sweeps import Sweep, published_point, shared_targets, sweeps, without_settings

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COMMAND = "mecam bench recipes/figure_rho.toml --out RESULTS"


@dataclass(frozen=True)
class Rho:
    """A line for each optimizer whose radius was swept, over targets that all points have."""

    data: str
    targets: str
    lines: tuple[Line, ...]
    note: str


def values(results: Sequence[Result]) -> Rho:
    """The lines to draw."""
    table = rows(results)
    found = sweeps([(row.key, row.results[0].recipe) for row in table], ("rho",))
    found = [sweep for sweep in found if _can_be_drawn(sweep, table)]
    if not found:
        raise Missing("there are no finished runs that differ in rho alone", COMMAND)
    data = main_data(sweep.data for sweep in found for _ in sweep.rows)
    chosen = sorted((sweep for sweep in found if sweep.data == data), key=lambda sweep: _order(sweep, table))
    targets = shared_targets(chosen[0], table)
    kept: list[Sweep] = []
    for sweep in chosen:  # as long as they have a target in common
        common = targets & shared_targets(sweep, table)
        if common and len(kept) < _style.MOST:
            kept, targets = [*kept, sweep], common
    keys = [without_settings(table[sweep.rows[0].row].key, ("rho",)) for sweep in kept]
    lines = []
    for sweep, key, name in zip(kept, keys, named(keys), strict=True):
        radii = [(entry.row, entry.values[0]) for entry in sweep.rows if entry.values[0] > 0]
        points = [over_targets(table[row], targets, radius) for row, radius in radii]
        finished = sorted((point for point in points if point is not None), key=lambda point: point.x)
        beside = published_point(table[sweep.rows[0].row], targets, "rho")
        lines.append(Line(name, key.optimizer, tuple(finished), beside))
    firsts = [table[sweep.rows[0].row] for sweep in kept]
    compared = [row for row, line in zip(firsts, lines, strict=True) if line.published]
    return Rho(data, target_words(targets, len(firsts[0].cells) - 1), tuple(lines), departures(compared, but=("rho",)))


def draw(found: Rho) -> Figure:
    """One panel, rho on a logarithmic axis."""
    figure = new_figure(width=6.0, height=4.2)
    axes = figure.add_subplot(xscale="log", xlabel="rho", ylabel=f"accuracy, % ({found.targets})")
    names = [line.name for line in found.lines]
    looks = dict(zip(names, _style.looks([line.optimizer for line in found.lines]), strict=True))
    for line in found.lines:
        _style.line(axes, line, looks[line.name])
    ticks = sorted({point.x for line in found.lines for point in line.points})
    axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.minorticks_off()
    entries = _style.line_entries(looks, published=any(line.published for line in found.lines))
    return _style.titled(figure, f"Accuracy against rho on {found.data}", found.note, entries)


def figure(_out: Path, results: Sequence[Result]) -> Figure:
    return draw(values(results))


def _can_be_drawn(sweep: Sweep, table: Sequence[Row]) -> bool:
    """Whether two radii above 0 have finished runs on one target."""
    finished = [entry for entry in sweep.rows if table[entry.row].values and entry.values[0] > 0]
    return len(finished) > 1 and bool(shared_targets(sweep, table))


def _order(sweep: Sweep, table: Sequence[Row]) -> tuple[int, int]:
    return -len(sweep.rows), in_paper_order(table[sweep.rows[0].row].key.optimizer)

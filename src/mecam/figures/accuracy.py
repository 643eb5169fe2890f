"""Figure 1: the average accuracy of all methods, one data set against another; with one data set, in order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import TYPE_CHECKING

from mecam.analysis._figure import new_figure
from mecam.benchmark import paper
from mecam.benchmark.results import Result
from mecam.benchmark.tables import AVERAGE, Key, Row, completeness_and_validation, rows
from mecam.defaults import OPTIMIZERS
from mecam.figures import _style
from mecam.figures.points import Missing, Point, departures, named, published_average

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from matplotlib.transforms import Bbox

AXES = ("PACS", "VLCS")  # the paper's


@dataclass(frozen=True)
class Method:
    """A method's averages, one per data set."""

    name: str
    kind: str  # one of _style.KINDS
    ours: tuple[Point, ...]
    published: tuple[float, ...] | None  # None: not published for all data sets


@dataclass(frozen=True)
class Accuracies:
    """The methods that have finished on all targets of one or two data sets."""

    data: tuple[str, ...]
    methods: tuple[Method, ...]
    note: str


def values(results: Sequence[Result]) -> Accuracies:
    """Return the averages to draw: per method, the settings nearest to the published ones, then best validation."""
    complete: dict[str, dict[Key, Row]] = {}
    for row in rows(results):
        if row.cells[AVERAGE].mean is not None:
            of_data, key = complete.setdefault(row.key.data, {}), replace(row.key, data="", variant="")
            of_data[key] = max(of_data.get(key, row), row, key=_standing)
    if not complete:
        raise Missing("no method has finished on all targets of a data set", "figure1")
    data = _axes(complete)
    shared = [key for key in complete[data[0]] if all(key in complete[name] for name in data)]
    kept = [key for key in shared if not _is_combination(key)] or shared  # combinations are in the tables
    matching = [[complete[name][key] for name in data] for key in kept]
    methods = [
        _method(name, same) for name, same in zip(named([same[0].key for same in matching]), matching, strict=True)
    ]
    methods.sort(key=lambda method: (method.ours[0].mean, method.name))
    compared = [row for same in matching for row in same if published_average(row) is not None]
    return Accuracies(data, tuple(methods), departures(compared))


def draw(accuracies: Accuracies) -> Figure:
    """Draw a scatter of two data sets, or the methods of one from best to worst."""
    return _scatter(accuracies) if len(accuracies.data) == 2 else _ordered(accuracies)


def _standing(row: Row) -> tuple[int, int, float]:
    """Return the sort key of a setting: fewest departures from the published one, all runs, best validation."""
    return -len(paper.fewest(paper.departures_of_row(row))), *completeness_and_validation(row.results)


def _axes(complete: dict[str, dict[Key, Row]]) -> tuple[str, ...]:
    """Return two data sets that share methods, PACS and VLCS if possible; or one."""
    order = sorted(complete, key=lambda name: (name not in AXES, AXES.index(name) if name in AXES else 0))
    shared = {(a, b): len(complete[a].keys() & complete[b].keys()) for a, b in combinations(order, 2)}
    if not any(shared.values()):
        return (max(order, key=lambda name: len(complete[name])),)
    return max(shared, key=lambda pair: (shared[pair] > 0, pair == AXES, shared[pair]))


def _is_combination(key: Key) -> bool:
    """Return whether a row is more than a method under its own optimizer, or an optimizer."""
    alone = key.method == "erm" or key.optimizer == OPTIMIZERS.get(key.method, "adam")
    return key.averaging != "none" or not alone


def _method(name: str, same: Sequence[Row]) -> Method:
    key = same[0].key
    kind = "MeCAM" if key.optimizer == "mecam" else "optimizers" if key.method == "erm" else "methods under Adam"
    cells = (row.cells[AVERAGE] for row in same)
    ours = tuple(Point(0.0, cell.mean, cell.spread) for cell in cells if cell.mean is not None)
    published = tuple(mean for row in same if (mean := published_average(row)) is not None)
    return Method(name, kind, ours, published if len(published) == len(same) else None)


def _scatter(accuracies: Accuracies) -> Figure:
    from matplotlib.transforms import Bbox

    figure = new_figure(width=8.0, height=6.6)
    axes = figure.add_subplot()
    boxes: list[Bbox] = []  # that marks and spreads cover
    for method in accuracies.methods:
        look = _style.KINDS[method.kind]
        x, y = method.ours
        axes.errorbar(x.mean, y.mean, x.spread, y.spread, **look.filled, elinewidth=0.8)
        across, up = x.spread or 0.0, y.spread or 0.0
        boxes.append(Bbox.from_extents(x.mean - across, y.mean, x.mean + across, y.mean))
        boxes.append(Bbox.from_extents(x.mean, y.mean - up, x.mean, y.mean + up))
        if method.published is not None:
            to_x, to_y = method.published
            axes.plot([x.mean, to_x], [y.mean, to_y], color=look.colour, linewidth=0.5, alpha=0.5, zorder=1)
            axes.plot(to_x, to_y, **look.hollow)
            boxes.append(Bbox.from_extents(to_x, to_y, to_x, to_y))
    axes.margins(0.09)
    x_label, y_label = (f"{name}: average accuracy on unseen domains, %" for name in accuracies.data)
    axes.set(xlabel=x_label, ylabel=y_label)
    places = [(method.ours[0].mean, method.ours[1].mean) for method in accuracies.methods]
    figure = _style.titled(figure, "Accuracy of all methods", accuracies.note, _kinds(accuracies))
    _style.label_points(axes, places, [method.name for method in accuracies.methods], boxes)
    return figure


def _ordered(accuracies: Accuracies) -> Figure:
    figure = new_figure(width=7.5, height=1.9 + 0.21 * len(accuracies.methods))
    axes = figure.add_subplot()
    for place, method in enumerate(accuracies.methods):
        look = _style.KINDS[method.kind]
        axes.errorbar(method.ours[0].mean, place, xerr=method.ours[0].spread, **look.filled, elinewidth=1)
        if method.published is not None:
            axes.plot(method.published[0], place, **look.hollow)
    axes.set_yticks(range(len(accuracies.methods)), [_style.short(method.name) for method in accuracies.methods])
    axes.set_ylim(-0.8, len(accuracies.methods) - 0.2)
    axes.set_xlabel(f"{accuracies.data[0]}: average accuracy on unseen domains, %")
    axes.grid(axis="y", visible=False)
    axes.grid(axis="y", color="0.92")
    return _style.titled(figure, "Accuracy of all methods", accuracies.note, _kinds(accuracies))


def _kinds(accuracies: Accuracies) -> _style.Entries:
    """Return the legend: kinds of rows, and the hollow mark of published ones."""
    shown = {method.kind for method in accuracies.methods}
    kinds = {kind: look.filled for kind, look in _style.KINDS.items() if kind in shown}
    hollow = any(method.published is not None for method in accuracies.methods)
    return {**kinds, **({"published": _style.KINDS["optimizers"].hollow | {"color": "0.3"}} if hollow else {})}

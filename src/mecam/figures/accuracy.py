"""Figure 1: the average accuracy of all methods, one data set against another; with one data set, in order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from mecam.analysis._figure import new_figure
from mecam.benchmark import departures as differences
from mecam.benchmark.results import Result
from mecam.benchmark.tables import AVERAGE, Key, Row, completeness_and_validation, rows
from mecam.figures import _style
from mecam.figures.points import Missing, Point, departures, named, published_average
from mecam.recipe import OPTIMIZERS

if TYPE_CHECKING:
    from matplotlib.figure import Figure

AXES = ("PACS", "VLCS")  # the paper's
COMMAND = "mecam bench recipes/figure1.toml --out RESULTS"


@dataclass(frozen=True)
class Method:
    """A method's averages, one for each data set."""

    name: str
    kind: str  # method, optimizer or MeCAM
    ours: tuple[Point, ...]
    published: tuple[float, ...] | None  # None: not published for all of them


@dataclass(frozen=True)
class Accuracies:
    """The methods that have finished on all targets of one data set or of two."""

    data: tuple[str, ...]
    methods: tuple[Method, ...]
    note: str


def values(results: Sequence[Result]) -> Accuracies:
    """The averages to draw: each method's at the settings nearest to the published ones, then by source validation."""
    finished: dict[tuple[str, Key], list[Row]] = {}
    for row in rows(results):
        if row.cells[AVERAGE].mean is not None:
            finished.setdefault((row.key.data, replace(row.key, data="", variant="")), []).append(row)
    complete: dict[str, dict[Key, Row]] = {}
    for (name, key), among in finished.items():
        complete.setdefault(name, {})[key] = max(among, key=_standing)
    if not complete:
        raise Missing("no method has finished on all targets of a data set", COMMAND)
    data = _axes(complete)
    shared = [key for key in complete[data[0]] if all(key in complete[name] for name in data)]
    kept = [key for key in shared if not _is_combination(key)] or shared  # combinations are in the tables
    found = [[complete[name][key] for name in data] for key in kept]
    methods = [
        Method(
            name,
            _kind(key),
            tuple(_point(row) for row in of_key),
            _published(of_key),
        )
        for key, name, of_key in zip(kept, named([of_key[0].key for of_key in found]), found, strict=True)
    ]
    methods.sort(key=lambda method: (method.ours[0].mean, method.name))
    compared = [row for of_key in found for row in of_key if published_average(row) is not None]
    return Accuracies(data, tuple(methods), departures(compared))


def draw(found: Accuracies) -> Figure:
    """A scatter of two data sets, or one data set's methods from best to worst."""
    return _scatter(found) if len(found.data) == 2 else _ordered(found)


def figure(_out: Path, results: Sequence[Result]) -> Figure:
    return draw(values(results))


def _standing(row: Row) -> tuple[int, int, float]:
    """What a method's setting is chosen by: fewest departures from the published ones, all runs, best validation."""
    return -len(differences.fewest(differences.of_row(row))), *completeness_and_validation(row.results)


def _axes(complete: dict[str, dict[Key, Row]]) -> tuple[str, ...]:
    """Two data sets that share methods, PACS and VLCS if they are among them; or one."""
    order = sorted(complete, key=lambda name: (name not in AXES, AXES.index(name) if name in AXES else 0))
    pairs = [(a, b) for place, a in enumerate(order) for b in order[place + 1 :] if complete[a].keys() & complete[b]]
    if not pairs:
        return (max(order, key=lambda name: len(complete[name])),)
    return max(pairs, key=lambda pair: (pair == AXES, len(complete[pair[0]].keys() & complete[pair[1]])))


def _is_combination(key: Key) -> bool:
    """Whether a row is more than a method under its own optimizer, or an optimizer."""
    alone = key.method == "erm" or key.optimizer == OPTIMIZERS.get(key.method, "adam")
    return key.averaging != "none" or not alone


def _kind(key: Key) -> str:
    if key.optimizer == "mecam":
        return "MeCAM"
    return "method" if key.method != "erm" else "optimizer"


def _point(row: Row) -> Point:
    cell = row.cells[AVERAGE]
    assert cell.mean is not None
    return Point(0.0, cell.mean, cell.spread)


def _published(of_key: Sequence[Row]) -> tuple[float, ...] | None:
    means = [published_average(row) for row in of_key]
    known = tuple(mean for mean in means if mean is not None)
    return known if len(known) == len(means) else None


def _scatter(found: Accuracies) -> Figure:
    figure = new_figure(width=8.0, height=6.6)
    axes = figure.add_subplot()
    for method in found.methods:
        look = _style.KINDS[method.kind]
        x, y = method.ours
        axes.errorbar(x.mean, y.mean, x.spread, y.spread, **look.filled, elinewidth=0.8)
        if method.published is not None:
            to_x, to_y = method.published
            axes.plot([x.mean, to_x], [y.mean, to_y], color=look.colour, linewidth=0.5, alpha=0.5, zorder=1)
            axes.plot(to_x, to_y, **look.hollow)
    axes.margins(0.09)
    x_label, y_label = (f"{name}: average accuracy on unseen domains, %" for name in found.data)
    axes.set(xlabel=x_label, ylabel=y_label)
    places = [(method.ours[0].mean, method.ours[1].mean) for method in found.methods]
    boxes = [box for method in found.methods for box in _boxes(method)]
    figure = _style.titled(figure, "Accuracy of all methods", found.note, _kinds(found))
    _style.label_points(axes, places, [method.name for method in found.methods], boxes)
    return figure


def _boxes(method: Method) -> list[tuple[float, float, float, float]]:
    """What a method's marks and spreads cover, as left, low, right and high."""
    (x, y), published = method.ours, method.published
    across, up = x.spread or 0.0, y.spread or 0.0
    ours = [(x.mean - across, y.mean, x.mean + across, y.mean), (x.mean, y.mean - up, x.mean, y.mean + up)]
    return ours if published is None else [*ours, (*published, *published)]  # type: ignore[list-item]


def _ordered(found: Accuracies) -> Figure:
    figure = new_figure(width=7.5, height=1.9 + 0.21 * len(found.methods))
    axes = figure.add_subplot()
    for place, method in enumerate(found.methods):
        look = _style.KINDS[method.kind]
        axes.errorbar(method.ours[0].mean, place, xerr=method.ours[0].spread, **look.filled, elinewidth=1)
        if method.published is not None:
            axes.plot(method.published[0], place, **look.hollow)
    axes.set_yticks(range(len(found.methods)), [_style.short(method.name) for method in found.methods])
    axes.set_ylim(-0.8, len(found.methods) - 0.2)
    axes.set_xlabel(f"{found.data[0]}: average accuracy on unseen domains, %")
    axes.grid(axis="y", visible=False)
    axes.grid(axis="y", color="0.92")
    return _style.titled(figure, "Accuracy of all methods", found.note, _kinds(found))


def _kinds(found: Accuracies) -> _style.Entries:
    """The legend: kinds of rows, and the hollow mark of published ones."""
    kinds = {
        name: _style.KINDS[kind].filled
        for kind, name in (("method", "methods under Adam"), ("optimizer", "optimizers"), ("MeCAM", "MeCAM"))
        if any(method.kind == kind for method in found.methods)
    }
    hollow = any(method.published is not None for method in found.methods)
    return {**kinds, **({"published": _style.KINDS["optimizer"].hollow | {"color": "0.3"}} if hollow else {})}

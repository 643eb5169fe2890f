"""Figure 3: accuracy against training iterations, one panel per target.

Complete runs of several lengths where there are some (recipes/figure3.toml). Otherwise, from the evaluations of each
run, the accuracy of the weights that would have been selected if training had ended there.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mecam import profiles
from mecam.analysis._figure import new_figure
from mecam.benchmark.results import DAMAGE, Result
from mecam.benchmark.tables import Key, Row, rows
from mecam.figures import _style
from mecam.figures.points import (
    Line,
    Missing,
    Point,
    departures,
    in_paper_order,
    main_data,
    mean_point,
    named,
    published_mean,
)
from mecam.figures.sweeps import without_settings
from mecam.recipe import Recipe
from mecam.runs import RunError, RunFolder

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COMMAND = "mecam bench recipes/figure3.toml --out RESULTS"
LENGTHS = "complete runs of each length"
PREFIXES = "the weights selected among the evaluations so far"
ACROSS = 4  # panels


@dataclass(frozen=True)
class Iterations:
    """The lines of each target."""

    data: str
    panels: Mapping[str, tuple[Line, ...]]
    source: str  # LENGTHS or PREFIXES
    note: str


@dataclass(frozen=True)
class Curve:
    """A row's accuracies: by target and iterations, one for each seed."""

    key: Key
    row: Row
    values: Mapping[str, Mapping[int, Sequence[float]]]


def values(results: Sequence[Result]) -> Iterations:
    """The lines to draw."""
    source, curves = LENGTHS, lengths(results)
    if not curves:
        source, curves = PREFIXES, prefixes(results)
    if not curves:
        raise Missing("there are neither runs of several lengths nor runs with several evaluations", COMMAND)
    data = main_data(curve.key.data for curve in curves)
    of_data = sorted((c for c in curves if c.key.data == data), key=_order)
    shown, more = of_data[: _style.MOST], len(of_data) - _style.MOST
    lines = list(zip(shown, named([curve.key for curve in shown]), strict=True))
    targets = sorted({target for curve in shown for target in curve.values})
    panels = {target: tuple(_line(c, name, target) for c, name in lines if target in c.values) for target in targets}
    beside = any(line.published for panel in panels.values() for line in panel)
    notes = [
        source,
        f"{more} more combinations are not drawn" if more > 0 else "",
        departures((c.row for c in shown), but=("steps",)) if beside else "",
    ]
    return Iterations(data, panels, source, "; ".join(filter(None, notes)))


def lengths(results: Sequence[Result]) -> list[Curve]:
    """The rows that differ in nothing but the number of steps, of which there are two or more."""
    groups: dict[str, list[Row]] = {}
    for row in rows(results):
        if row.values:
            groups.setdefault(f"{row.key.data} {_alike(row.results[0].recipe)}", []).append(row)
    found = []
    for group in groups.values():
        if len({row.results[0].recipe.steps for row in group}) < 2:
            continue
        values: dict[str, dict[int, list[float]]] = {}
        for row in group:
            for (target, _), accuracy in row.values.items():
                at = values.setdefault(target, {})
                at.setdefault(row.results[0].recipe.steps, []).append(accuracy)
        found.append(Curve(without_settings(group[0].key, ("steps",)), group[-1], values))
    return found


def prefixes(results: Sequence[Result]) -> list[Curve]:
    """What would have been selected among the first evaluations of each run; averaged weights are not recorded."""
    found = []
    for row in rows(results, select="shared"):
        values: dict[str, dict[int, list[float]]] = {}
        for result in row.results:
            if result.accuracy is None or result.recipe.averaging != "none":
                continue
            for step, accuracy in _records(result):
                values.setdefault(result.target, {}).setdefault(step, []).append(accuracy)
        whole = {target: _whole(at) for target, at in values.items()}
        whole = {target: at for target, at in whole.items() if len(at) > 1}
        if whole:
            found.append(Curve(row.key, row, whole))
    return found


def selected(records: Sequence[Mapping[str, Any]], recipe: Recipe) -> list[tuple[int, float]]:
    """For each evaluation after step 0 the accuracy, in percent, of the best weights up to it."""
    from mecam.training.selection import Best

    best, accuracy, found = Best(recipe.selection), 0.0, []
    for record in records:
        splits = record["splits"]
        held_out = [m["accuracy"] for n, m in splits.items() if n.endswith(" out") and n != f"{recipe.target} out"]
        oracle = splits.get(f"{recipe.target} out", {}).get("accuracy")
        best.offer(record["step"], statistics.fmean(held_out), oracle, {})
        if best.step == record["step"]:
            accuracy = 100 * splits[f"{recipe.target} in"]["accuracy"]
        if record["step"]:
            found.append((record["step"], accuracy))
    return found


def draw(found: Iterations) -> Figure:
    """A panel for each target."""
    across = min(ACROSS, len(found.panels))
    down = -(-len(found.panels) // across)
    figure = new_figure(width=max(6.4, 0.6 + 2.9 * across), height=1.5 + 2.6 * down)
    panels = list(figure.subplots(down, across, squeeze=False).flat)
    everything = {line.name: line.optimizer for lines in found.panels.values() for line in lines}
    looks = dict(zip(everything, _style.looks(list(everything.values())), strict=True))
    for axes, (target, lines) in zip(panels, found.panels.items(), strict=False):
        for line in lines:
            _style.line(axes, line, looks[line.name])
        axes.set(title=target, xlabel="training iterations")
        axes.locator_params(axis="x", nbins=5)
    for axes in panels[len(found.panels) :]:
        axes.set_visible(False)
    for row in range(down):
        panels[row * across].set_ylabel("accuracy, %")
    published = any(line.published for lines in found.panels.values() for line in lines)
    title = f"Accuracy against training iterations on {found.data}"
    return _style.titled(figure, title, found.note, _style.line_entries(looks, published=published))


def figure(_out: Path, results: Sequence[Result]) -> Figure:
    return draw(values(results))


def _line(curve: Curve, name: str, target: str) -> Line:
    at = curve.values[target]
    points = tuple(mean_point(steps, at[steps]) for steps in sorted(at))
    theirs, steps = published_mean(curve.key, target), profiles.steps(curve.key.data)
    beside = theirs is not None and points[0].x <= steps <= points[-1].x
    return Line(name, curve.key.optimizer, points, (Point(steps, theirs),) if beside and theirs is not None else ())


def _order(curve: Curve) -> tuple[bool, int]:
    return curve.key.method != "erm", in_paper_order(curve.key.optimizer)


def _alike(recipe: Recipe) -> str:
    rest = {**recipe.to_dict(), "target": None, "seed": None, "steps": None}
    return json.dumps(rest, sort_keys=True, default=str)


def _records(result: Result) -> list[tuple[int, float]]:
    """None of a run whose records cannot be read, which `mecam verify` names."""
    try:
        return selected(RunFolder(result.path).read_records(), result.recipe)
    except (RunError, OSError, *DAMAGE):
        return []


def _whole(at: Mapping[int, Sequence[float]]) -> dict[int, Sequence[float]]:
    """The steps that all seeds have."""
    most = max(map(len, at.values()), default=0)
    return {step: values for step, values in at.items() if len(values) == most}

"""Figure 3: accuracy against training iterations, one panel per target.

Use complete runs of several lengths if there are some (recipes/figure3.toml). Otherwise use, from the evaluations of
each run, the accuracy of the weights that would have been selected if training had ended there.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mecam import profiles
from mecam.analysis._figure import new_figure
from mecam.benchmark.results import DAMAGE, Result
from mecam.benchmark.tables import Key, Row, rows
from mecam.figures import _style, points
from mecam.figures.sweeps import alike, without_settings
from mecam.recipe import Recipe
from mecam.runs import RunError, RunFolder
from mecam.splits import Summary, summarize

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LENGTHS = "complete runs of each length"
PREFIXES = "the weights selected among the evaluations so far"
ACROSS = 4  # panels
Values = defaultdict[str, defaultdict[int, list[float]]]  # accuracies by target and iterations, one per seed


@dataclass(frozen=True)
class Iterations:
    """The lines of each target."""

    data: str
    panels: Mapping[str, tuple[points.Line, ...]]
    note: str


@dataclass(frozen=True)
class Curve:
    """A row's accuracies by target and iterations, one per seed."""

    key: Key
    row: Row
    values: Mapping[str, Mapping[int, Sequence[float]]]


def values(results: Sequence[Result]) -> Iterations:
    """Return the lines to draw."""
    source, curves = LENGTHS, lengths(results)
    if not curves:
        source, curves = PREFIXES, prefixes(results)
    if not curves:
        raise points.Missing("there are neither runs of several lengths nor runs with several evaluations", "figure3")
    data = points.main_data(curve.key.data for curve in curves)
    of_data = [curve for curve in curves if curve.key.data == data]
    of_data.sort(key=lambda curve: (curve.key.method != "erm", points.in_paper_order(curve.key.optimizer)))
    shown, more = of_data[: _style.MOST], len(of_data) - _style.MOST
    lines = list(zip(shown, points.named([curve.key for curve in shown]), strict=True))
    targets = sorted({target for curve in shown for target in curve.values})
    panels = {target: tuple(_line(c, name, target) for c, name in lines if target in c.values) for target in targets}
    beside = any(line.published for panel in panels.values() for line in panel)
    notes = [
        source,
        f"{more} more combinations are not drawn" if more > 0 else "",
        points.departures((c.row for c in shown), but=("steps",)) if beside else "",
    ]
    return Iterations(data, panels, "; ".join(filter(None, notes)))


def lengths(results: Sequence[Result]) -> list[Curve]:
    """Return the rows that differ only in the number of steps, of which there are at least two."""
    groups: dict[str, list[Row]] = {}
    for row in rows(results):
        if row.values:
            groups.setdefault(f"{row.key.data} {alike(row.results[0].recipe, steps=None)}", []).append(row)
    curves = []
    for group in groups.values():
        values: Values = defaultdict(lambda: defaultdict(list))
        for row in group:
            for (target, _), accuracy in row.values.items():
                values[target][row.results[0].recipe.steps].append(accuracy)
        if len({row.results[0].recipe.steps for row in group}) > 1:
            curves.append(Curve(without_settings(group[0].key, ("steps",)), group[-1], values))
    return curves


def prefixes(results: Sequence[Result]) -> list[Curve]:
    """Return the selection among the first evaluations of each run; records have no averaged weights."""
    curves = []
    for row in rows(results, select="shared"):
        values: Values = defaultdict(lambda: defaultdict(list))
        for result in row.results:
            if result.accuracy is None or result.recipe.averaging != "none":
                continue
            # a run whose records cannot be read is left out; `mecam verify` reports it
            with suppress(RunError, OSError, *DAMAGE):
                for step, accuracy in selected(_evaluations(result), result.recipe):
                    values[result.target][step].append(accuracy)
        whole = {target: _of_all_seeds(at) for target, at in values.items()}
        whole = {target: at for target, at in whole.items() if len(at) > 1}
        if whole:
            curves.append(Curve(row.key, row, whole))
    return curves


def _evaluations(result: Result) -> Iterator[tuple[int, Summary]]:
    """Yield the accuracies after each evaluated step. A records file lacks those that the oracle selects by."""
    if result.record is not None:
        for each in result.record.evaluations:
            yield each.step, Summary(each.validation, each.target, None)
        return
    for record in RunFolder(result.path).read_records():
        yield record["step"], summarize(record["splits"], result.recipe.target)


def selected(evaluations: Iterable[tuple[int, Summary]], recipe: Recipe) -> list[tuple[int, float]]:
    """Return, per evaluation after step 0, the accuracy in percent of the best weights up to it."""
    from mecam.training.selection import Best

    best, accuracy, accuracies = Best(recipe.selection), 0.0, []
    for step, summary in evaluations:
        best.offer(step, summary.validation, summary.oracle, {})
        if best.step == step and summary.target is not None:
            accuracy = 100 * summary.target
        if step and best.step is not None:
            accuracies.append((step, accuracy))
    return accuracies


def draw(iterations: Iterations) -> Figure:
    """Draw a panel per target."""
    across = min(ACROSS, len(iterations.panels))
    down = -(-len(iterations.panels) // across)
    figure = new_figure(width=max(6.4, 0.6 + 2.9 * across), height=1.5 + 2.6 * down)
    panels = list(figure.subplots(down, across, squeeze=False).flat)
    entries = _style.draw_lines(dict(zip(panels, iterations.panels.values(), strict=False)))
    for axes, target in zip(panels, iterations.panels, strict=False):
        axes.set(title=target, xlabel="training iterations")
        axes.locator_params(axis="x", nbins=5)
    for axes in panels[len(iterations.panels) :]:
        axes.set_visible(False)
    for row in range(down):
        panels[row * across].set_ylabel("accuracy, %")
    return _style.titled(figure, f"Accuracy against training iterations on {iterations.data}", iterations.note, entries)


def _line(curve: Curve, name: str, target: str) -> points.Line:
    at = curve.values[target]
    ours = tuple(points.mean_point(steps, at[steps]) for steps in sorted(at))
    theirs, steps = points.published_mean(curve.key, target), profiles.steps(curve.key.data)
    published = (points.Point(steps, theirs),) if theirs is not None and ours[0].x <= steps <= ours[-1].x else ()
    return points.Line(name, curve.key.optimizer, ours, published)


def _of_all_seeds(at: Mapping[int, Sequence[float]]) -> Mapping[int, Sequence[float]]:
    """Return the steps that all seeds have."""
    most = max(map(len, at.values()), default=0)
    return {step: values for step, values in at.items() if len(values) == most}

"""Make tables from results: a row per combination, a cell per target, statistics over trials.

A cell is the mean over trials (seeds). The average of a data set is the mean over targets inside each trial, then the
mean over trials; a trial that lacks a target counts in the cells it has and not in the average.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from mecam.benchmark.results import AVERAGE as AVERAGE
from mecam.benchmark.results import Result
from mecam.recipe import is_variant, names_in
from mecam.splits import half_interval

Spread = Literal["stderr", "std", "interval"]
Select = Literal["none", "shared", "target"]


SPREADS: Mapping[Spread, Callable[[Sequence[float]], float]] = {
    "stderr": lambda values: statistics.pstdev(values) / math.sqrt(len(values)),
    "std": statistics.pstdev,
    "interval": half_interval,
}


@dataclass(frozen=True)
class Cell:
    """A mean in percent, its spread and the number of its runs."""

    mean: float | None
    spread: float | None
    runs: int  # finished
    missing: int  # begun or expected, and not finished
    balanced: float | None = None  # mean balanced accuracy; None: not known of all its runs


@dataclass(frozen=True)
class Key:
    """The data, method, optimizer and averaging of a row."""

    data: str
    method: str
    optimizer: str
    averaging: str
    variant: str = ""
    method_variant: bool = False  # the method under an optimizer it is not defined with: fish under Adam

    @property
    def label(self) -> str:
        """The row's name; ERM and no averaging are left out."""
        method = f"{self.method} variant" if self.method_variant else self.method
        parts = [] if method == "erm" else [method]
        parts += [self.optimizer] if self.averaging == "none" else [self.optimizer, self.averaging]
        return " + ".join(parts) + (f" ({self.variant})" if self.variant else "")


@dataclass(frozen=True)
class Row:
    """The cells of a row by target, the average last."""

    key: Key
    cells: Mapping[str, Cell]
    values: Mapping[tuple[str, int], float]  # by target and seed
    results: Sequence[Result] = field(compare=False)  # by target and seed
    chosen: str = ""  # the settings that a search shared by all targets chose


@dataclass(frozen=True)
class Difference:
    """A row minus a baseline, over the targets and seeds that both have."""

    mean: float
    low: float  # of the 95 % confidence interval
    high: float
    pairs: int


def rows(results: Sequence[Result], *, spread: Spread = "stderr", select: Select = "none") -> list[Row]:
    """Return the rows of these results, data set by data set.

    Args:
        spread: standard error or standard deviation over trials, both of the population (ddof 0), or the 95 %
            confidence interval of the mean.
        select: what to do with runs that differ in hyperparameters alone. "none": a row each; "shared": the setting
            with the best source validation over all targets and trials (a grid); "target": the best for each target
            and trial (DomainBed's search). The target's accuracy is never used.
    """
    grouped: dict[Key, list[Result]] = {}
    labels = _variant_labels(results)
    for result in sorted(results, key=lambda result: (result.target, result.recipe.seed)):
        recipe = result.recipe
        key = Key(
            *(result.data, recipe.method, recipe.optimizer, recipe.averaging),
            variant=labels[result.path],
            method_variant=is_variant(recipe),
        )
        grouped.setdefault(key, []).append(result)
    groups: Mapping[Key, Sequence[Result]] = grouped if select == "none" else _selected(grouped, select)
    targets = {data: sorted({r.target for r in results if r.data == data}) for data in {r.data for r in results}}
    seeds = {data: sorted({r.recipe.seed for r in results if r.data == data}) for data in targets}
    table = [
        _row(key, groups[key], targets[key.data], seeds[key.data], SPREADS[spread])
        for key in sorted(groups, key=_order)
    ]
    return [replace(row, chosen=labels[row.results[0].path]) for row in table] if select == "shared" else table


def is_unbalanced(row: Row) -> bool:
    """Return whether the balanced accuracy of a row is another one than its accuracy, by a point or more."""
    cell = row.cells[AVERAGE]
    return cell.mean is not None and cell.balanced is not None and abs(cell.mean - cell.balanced) >= 1


def difference(row: Row, baseline: Row) -> Difference | None:
    """Return the difference paired over targets and seeds (Student's t); None without two pairs.

    The pairs of one seed are not independent.
    """
    gaps = [row.values[place] - baseline.values[place] for place in sorted(row.values.keys() & baseline.values.keys())]
    if len(gaps) < 2:
        return None
    mean, half = statistics.fmean(gaps), half_interval(gaps)
    return Difference(mean, mean - half, mean + half, len(gaps))


def rank_averages(table: Sequence[Row]) -> dict[Key, float]:
    """Return the mean rank over targets of each row that has all targets of its data set; 1 is best, ties share."""
    ranks: dict[Key, float] = {}
    for data in {row.key.data for row in table}:
        whole: dict[Key, list[float]] = {}
        for row in (row for row in table if row.key.data == data):
            means = [cell.mean for target, cell in row.cells.items() if target != AVERAGE and cell.mean is not None]
            if len(means) == len(row.cells) - 1:
                whole[row.key] = means
        columns = list(zip(*whole.values(), strict=True))
        for key, means in whole.items():
            ranks[key] = statistics.fmean(_rank(mean, column) for mean, column in zip(means, columns, strict=True))
    return ranks


def trial_averages(values: Mapping[tuple[str, int], float], targets: Collection[str]) -> list[float]:
    """Return the mean over these targets for each seed that has all of them."""
    seeds = sorted({seed for _, seed in values})
    whole = [seed for seed in seeds if all((target, seed) in values for target in targets)]
    return [statistics.fmean(values[target, seed] for target in targets) for seed in whole]


def _rank(mean: float, column: Sequence[float]) -> float:
    """Return the rank of a mean in its column; 1 is the largest, equal ones share."""
    return 1 + sum(other > mean for other in column) + (column.count(mean) - 1) / 2


def _row(
    key: Key,
    results: Sequence[Result],
    targets: Sequence[str],
    seeds: Sequence[int],
    spread: Callable[[Sequence[float]], float],
) -> Row:
    values = {(r.target, r.recipe.seed): r.accuracy for r in results if r.accuracy is not None}
    balanced = {(r.target, r.recipe.seed): r.balanced for r in results if r.balanced is not None}
    cells = {}
    for target in targets:
        trials = [values[target, seed] for seed in seeds if (target, seed) in values]
        cells[target] = _cell(trials, len(trials), len(seeds) - len(trials), spread)
    cells[AVERAGE] = _cell(
        trial_averages(values, targets), len(values), len(targets) * len(seeds) - len(values), spread
    )
    if balanced.keys() == values.keys():
        for name, cell in cells.items():
            means = trial_averages(balanced, targets if name == AVERAGE else [name])
            cells[name] = replace(cell, balanced=statistics.fmean(means) if means else None)
    return Row(key, cells, values, results)


def _cell(values: Sequence[float], runs: int, missing: int, spread: Callable[[Sequence[float]], float]) -> Cell:
    if not values:
        return Cell(None, None, runs, missing)
    return Cell(statistics.fmean(values), spread(values) if len(values) > 1 else None, runs, missing)


def _variant_labels(results: Sequence[Result]) -> dict[Any, str]:
    """Return for each result the settings in which the runs of its row differ: "rho=0.1"; "" where they do not.

    Sources are named where runs on the same data differ in them, also in other rows.
    """
    sources = _sources(results)
    groups: dict[tuple[str, ...], list[tuple[Result, dict[str, Any]]]] = {}
    for result in results:
        recipe = result.recipe
        place = (result.data, recipe.method, recipe.optimizer, recipe.averaging, recipe.trainable)
        groups.setdefault(place, []).append((result, result.variant))
    labels = {}
    for group in groups.values():
        names = list(dict.fromkeys(name for _, variant in group for name in variant))
        differing = [name for name in names if len({repr(variant.get(name)) for _, variant in group}) > 1]
        last = [name.rpartition(".")[2] for name in differing]
        short = {name: end if last.count(end) == 1 else name for name, end in zip(differing, last, strict=True)}
        for result, variant in group:
            settings = [f"{short[name]}={variant[name]}" for name in differing if name in variant]
            frozen = [result.recipe.trainable] if result.recipe.trainable != "all" else []
            labels[result.path] = ", ".join([*frozen, *sources[result.path], *settings])
    return labels


def _sources(results: Sequence[Result]) -> dict[Any, list[str]]:
    """Return for each result the words about its sources in its row."""
    several: dict[str, set[str | None]] = {}
    for result in results:
        several.setdefault(result.data, set()).add(result.recipe.sources)
    return {
        result.path: [f"sources={','.join(names_in(result.recipe.sources)) or 'all'}"]
        if len(several[result.data]) > 1
        else []
        for result in results
    }


def _order(key: Key) -> tuple[object, ...]:
    """Order rows by name, and by the values of their settings: steps=25 before steps=100."""
    pieces = (piece.rpartition("=") for piece in key.variant.split(", "))
    values = [(name, _number(value), value) for name, _, value in pieces]
    return key.data, key.method, key.optimizer, key.averaging, values


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.inf


def _selected(groups: Mapping[Key, Sequence[Result]], select: Select) -> dict[Key, Sequence[Result]]:
    """Return one group of results for each row without its variants; runs on other sources stay rows of their own."""
    merged: dict[Key, list[Sequence[Result]]] = {}
    sources = _sources([result for results in groups.values() for result in results])
    for key, results in groups.items():
        merged.setdefault(replace(key, variant=", ".join(sources[results[0].path])), []).append(results)
    if select == "shared":
        return {key: max(variants, key=completeness_and_validation) for key, variants in merged.items()}
    chosen: dict[Key, Sequence[Result]] = {}
    for key, variants in merged.items():
        best: dict[tuple[str, int], Result] = {}
        for result in itertools.chain.from_iterable(variants):
            before = best.setdefault((result.target, result.recipe.seed), result)
            if (result.validation or -1) > (before.validation or -1):
                best[result.target, result.recipe.seed] = result
        chosen[key] = list(best.values())
    return chosen


def completeness_and_validation(results: Iterable[Result]) -> tuple[int, float]:
    """Return the sort key of a grid point: the number of its runs, then their validation."""
    values = [result.validation for result in results if result.validation is not None]
    return len(values), statistics.fmean(values) if values else -1.0

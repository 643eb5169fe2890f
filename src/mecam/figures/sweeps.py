"""Rows that differ in hyperparameters alone: alpha against beta, and rho."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from mecam.benchmark import paper
from mecam.benchmark.tables import Key, Row
from mecam.figures.points import Point, published_average
from mecam.recipe import Recipe


@dataclass(frozen=True)
class Swept:
    """A row, by its place in the page's table, and the values it has of what is swept."""

    row: int
    values: list[float]


@dataclass(frozen=True)
class Sweep:
    """Rows alike in all but the swept settings."""

    data: str
    label: str
    swept: list[str]
    rows: list[Swept]
    reference: int | None = None  # the row of SAM that differs in lr and the optimizer's settings alone


def sweeps(rows: Sequence[tuple[Key, Recipe]], swept: Sequence[str]) -> list[Sweep]:
    """The groups in which each of the swept settings of the optimizer has two values or more."""
    groups: dict[str, list[Swept]] = {}
    names: dict[str, tuple[str, str]] = {}
    firsts: dict[str, Recipe] = {}
    of_sam = [(place, recipe) for place, (_, recipe) in enumerate(rows) if recipe.optimizer == "sam"]
    for place, (key, recipe) in enumerate(rows):
        settings = settings_of(recipe)
        if not all(_is_number(settings.get(name)) for name in swept):
            continue
        group = _alike(recipe, _without(settings, swept))
        groups.setdefault(group, []).append(Swept(place, [float(settings[name]) for name in swept]))
        names[group], firsts[group] = (key.data, without_settings(key, swept).label), recipe
    return [
        Sweep(*names[group], list(swept), found, _reference(firsts[group], swept, of_sam))
        for group, found in groups.items()
        if all(len({entry.values[place] for entry in found}) > 1 for place in range(len(swept)))
    ]


def shared_targets(sweep: Sweep, table: Sequence[Row]) -> set[str]:
    """The targets that all rows of a sweep have; rows without a finished run do not count."""
    begun = [{target for target, _ in table[entry.row].values} for entry in sweep.rows if table[entry.row].values]
    return set.intersection(*begun) if begun else set()


def without_settings(key: Key, names: Sequence[str]) -> Key:
    """The row without these settings in its variant."""
    parts = [part for part in key.variant.split(", ") if part.partition("=")[0].rpartition(".")[2] not in names]
    return replace(key, variant=", ".join(part for part in parts if part))


def published_point(row: Row, targets: Collection[str], *swept: str) -> tuple[Point, ...]:
    """MeCAM's published average, at the paper's value of the first swept setting; none for rows it is not about."""
    theirs, ours = paper.settings_of(row.key.data), settings_of(row.results[0].recipe)
    mean = published_average(row)
    same = all(ours.get(name) == value for name, value in theirs.items() if name not in swept)
    if row.key.optimizer != "mecam" or not theirs or not same or mean is None or len(targets) < len(row.cells) - 1:
        return ()
    return (Point(theirs[swept[0]], mean),)


def _alike(recipe: Recipe, settings: dict[str, Any]) -> str:
    """What recipes share that differ in target, seed and some of the optimizer's settings alone."""
    rest = {**recipe.to_dict(), "target": None, "seed": None, "optimizer_settings": settings}
    return json.dumps(rest, sort_keys=True, default=str)


def _reference(recipe: Recipe, swept: Sequence[str], of_sam: Sequence[tuple[int, Recipe]]) -> int | None:
    """Find the row of SAM to compare a sweep with, at the same rho and lr if there is one; none for sweeps of rho."""

    def differs(sam: Recipe) -> tuple[bool, bool]:
        return settings_of(sam)["rho"] != settings_of(recipe).get("rho"), sam.lr != recipe.lr

    wanted = _alike(replace(recipe, optimizer="sam", lr=0.0), {})
    fitting = [(place, sam) for place, sam in of_sam if _alike(replace(sam, lr=0.0), {}) == wanted]
    if "rho" in swept or not fitting:
        return None
    return min(fitting, key=lambda entry: differs(entry[1]))[0]


def settings_of(recipe: Recipe) -> dict[str, Any]:
    """The optimizer's hyperparameters with its defaults, so that a run at the default is a point of the sweep."""
    from mecam.optim.registry import OPTIMIZERS

    defaults = OPTIMIZERS[recipe.optimizer].defaults if recipe.optimizer in OPTIMIZERS else {}
    return {**defaults, **recipe.optimizer_settings}


def _without(settings: dict[str, Any], names: Iterable[str]) -> dict[str, Any]:
    return {name: value for name, value in settings.items() if name not in names}


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)

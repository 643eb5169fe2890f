"""Rows that differ in hyperparameters alone: alpha against beta, and rho."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any

from mecam.benchmark import paper
from mecam.benchmark.tables import Key, Row
from mecam.figures.points import Point, published_average
from mecam.recipe import Recipe


@dataclass(frozen=True)
class Swept:
    """A row, by its index in the table, and its values of the swept settings."""

    row: int
    values: list[float]


@dataclass(frozen=True)
class Sweep:
    """Rows alike in all but the swept settings."""

    data: str
    label: str
    rows: list[Swept]
    reference: int | None = None  # the row of SAM that differs in lr and the optimizer's settings alone


def sweeps(table: Sequence[Row], swept: Sequence[str]) -> list[Sweep]:
    """Return the groups in which each swept setting of the optimizer has at least two values."""
    groups: dict[str, list[Swept]] = {}
    for place, row in enumerate(table):
        recipe = row.results[0].recipe
        settings = settings_of(recipe)
        if all(type(settings.get(name)) in (int, float) for name in swept):
            group = alike(recipe, optimizer_settings={k: value for k, value in settings.items() if k not in swept})
            groups.setdefault(group, []).append(Swept(place, [float(settings[name]) for name in swept]))
    drawable = [
        entries for entries in groups.values()
        if all(len(set(values)) > 1 for values in zip(*(entry.values for entry in entries), strict=True))
    ]  # fmt: skip
    made = []
    for entries in drawable:
        last = table[entries[-1].row]
        label, reference = without_settings(last.key, swept).label, _reference(last.results[0].recipe, swept, table)
        made.append(Sweep(last.key.data, label, entries, reference))
    return made


def shared_targets(sweep: Sweep, table: Sequence[Row]) -> set[str]:
    """Return the targets that all rows of a sweep have; rows without a finished run do not count."""
    begun = [{target for target, _ in table[entry.row].values} for entry in sweep.rows if table[entry.row].values]
    return set.intersection(*begun) if begun else set()


def without_settings(key: Key, names: Sequence[str]) -> Key:
    """Return the row without these settings in its variant."""
    parts = [part for part in key.variant.split(", ") if part.partition("=")[0].rpartition(".")[2] not in names]
    return replace(key, variant=", ".join(part for part in parts if part))


def published_point(row: Row, targets: Collection[str], *swept: str) -> tuple[Point, ...]:
    """Return MeCAM's published average at the paper's value of the first swept setting; nothing for other rows."""
    theirs, ours = paper.settings_of(row.key.data), settings_of(row.results[0].recipe)
    mean = published_average(row)
    same = all(ours.get(name) == value for name, value in theirs.items() if name not in swept)
    if row.key.optimizer != "mecam" or not theirs or not same or mean is None or len(targets) < len(row.cells) - 1:
        return ()
    return (Point(theirs[swept[0]], mean),)


def alike(recipe: Recipe, **replaced: Any) -> str:
    """Return the same string for recipes that differ only in target, seed and what is `replaced`."""
    return json.dumps({**recipe.to_dict(), "target": None, "seed": None, **replaced}, sort_keys=True, default=str)


def _reference(recipe: Recipe, swept: Sequence[str], table: Sequence[Row]) -> int | None:
    """Return the row of SAM to compare a sweep with, at the same rho and lr if possible; None for sweeps of rho."""
    same: dict[str, Any] = {"optimizer": "sam", "lr": 0.0, "optimizer_settings": {}}
    recipes = {place: row.results[0].recipe for place, row in enumerate(table) if row.key.optimizer == "sam"}
    fitting = [place for place, sam in recipes.items() if alike(sam, **same) == alike(recipe, **same)]
    if "rho" in swept or not fitting:
        return None
    rho, lr = settings_of(recipe).get("rho"), recipe.lr
    return min(fitting, key=lambda place: (settings_of(recipes[place])["rho"] != rho, recipes[place].lr != lr))


def settings_of(recipe: Recipe) -> dict[str, Any]:
    """Return the optimizer's hyperparameters with defaults: a run at the default is a point of the sweep."""
    from mecam.optim.registry import OPTIMIZERS

    defaults = OPTIMIZERS[recipe.optimizer].defaults if recipe.optimizer in OPTIMIZERS else {}
    return {**defaults, **recipe.optimizer_settings}

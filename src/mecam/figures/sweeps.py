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
    """A row, by its index in the page's table, and its values of the swept settings."""

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
    """Return the groups in which each swept setting of the optimizer has at least two values."""
    groups: dict[str, list[Swept]] = {}
    described: dict[str, tuple[str, str, Recipe]] = {}
    of_sam = [(place, recipe) for place, (_, recipe) in enumerate(rows) if recipe.optimizer == "sam"]
    for place, (key, recipe) in enumerate(rows):
        settings = settings_of(recipe)
        if any(type(settings.get(name)) not in (int, float) for name in swept):
            continue
        group = alike(recipe, optimizer_settings={key: value for key, value in settings.items() if key not in swept})
        groups.setdefault(group, []).append(Swept(place, [float(settings[name]) for name in swept]))
        described[group] = key.data, without_settings(key, swept).label, recipe
    return [
        Sweep(data, label, list(swept), entries, _reference(recipe, swept, of_sam))
        for entries, (data, label, recipe) in zip(groups.values(), described.values(), strict=True)
        if all(len({entry.values[place] for entry in entries}) > 1 for place in range(len(swept)))
    ]


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


def _reference(recipe: Recipe, swept: Sequence[str], of_sam: Sequence[tuple[int, Recipe]]) -> int | None:
    """Return the row of SAM to compare a sweep with, at the same rho and lr if possible; None for sweeps of rho."""

    def differs(sam: Recipe) -> tuple[bool, bool]:
        return settings_of(sam)["rho"] != settings_of(recipe).get("rho"), sam.lr != recipe.lr

    same: dict[str, Any] = {"optimizer": "sam", "lr": 0.0, "optimizer_settings": {}}
    fitting = [(place, sam) for place, sam in of_sam if alike(sam, **same) == alike(recipe, **same)]
    if "rho" in swept or not fitting:
        return None
    return min(fitting, key=lambda entry: differs(entry[1]))[0]


def settings_of(recipe: Recipe) -> dict[str, Any]:
    """Return the optimizer's hyperparameters with defaults: a run at the default is a point of the sweep."""
    from mecam.optim.registry import OPTIMIZERS

    defaults = OPTIMIZERS[recipe.optimizer].defaults if recipe.optimizer in OPTIMIZERS else {}
    return {**defaults, **recipe.optimizer_settings}

"""Rows that differ in hyperparameters alone: alpha against beta, and rho."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from mecam.benchmark.tables import Key
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
    reference: int | None = None  # the row of SAM that is alike in all else


def sweeps(rows: Sequence[tuple[Key, Recipe]], swept: Sequence[str]) -> list[Sweep]:
    """The groups in which each of the swept settings of the optimizer has two values or more."""
    groups: dict[str, list[Swept]] = {}
    names: dict[str, tuple[str, str]] = {}
    firsts: dict[str, Recipe] = {}
    sam = {
        _alike(recipe, _settings(recipe)): place for place, (_, recipe) in enumerate(rows) if recipe.optimizer == "sam"
    }
    for place, (key, recipe) in enumerate(rows):
        settings = _settings(recipe)
        if not all(_is_number(settings.get(name)) for name in swept):
            continue
        group = _alike(recipe, _without(settings, swept))
        groups.setdefault(group, []).append(Swept(place, [float(settings[name]) for name in swept]))
        names[group], firsts[group] = (key.data, _label(key, swept)), recipe
    return [
        Sweep(*names[group], list(swept), found, sam.get(_as_sam(firsts[group], swept)))
        for group, found in groups.items()
        if all(len({entry.values[place] for entry in found}) > 1 for place in range(len(swept)))
    ]


def _alike(recipe: Recipe, settings: dict[str, Any]) -> str:
    """What recipes share that differ in target, seed and some of the optimizer's settings alone."""
    rest = {**recipe.to_dict(), "target": None, "seed": None, "optimizer_settings": settings}
    return json.dumps(rest, sort_keys=True, default=str)


def _as_sam(recipe: Recipe, swept: Sequence[str]) -> str:
    """SAM in its place, at its radius."""
    kept = {name: value for name, value in _settings(recipe).items() if name == "rho" and name not in swept}
    return _alike(replace(recipe, optimizer="sam"), kept)


def _settings(recipe: Recipe) -> dict[str, Any]:
    """The optimizer's hyperparameters with its defaults, so that a run at the default is a point of the sweep."""
    from mecam.optim.registry import OPTIMIZERS

    defaults = OPTIMIZERS[recipe.optimizer].defaults if recipe.optimizer in OPTIMIZERS else {}
    return {**defaults, **recipe.optimizer_settings}


def _label(key: Key, swept: Sequence[str]) -> str:
    """The row's label without the swept settings."""
    parts = [part for part in key.variant.split(", ") if part.partition("=")[0].rpartition(".")[2] not in swept]
    return replace(key, variant=", ".join(part for part in parts if part)).label


def _without(settings: dict[str, Any], names: Iterable[str]) -> dict[str, Any]:
    return {name: value for name, value in settings.items() if name not in names}


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)

"""Give each part of a run the settings it has: rho goes to mecam, and adam runs without.

A setting that none of the parts has is refused. The registries are imported where used, since they import torch.
"""

from __future__ import annotations

import importlib
import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from mecam.defaults import OPTIMIZERS
from mecam.near import hint
from mecam.recipe import Recipe, RecipeError
from mecam.registry import Registry

Entries = Mapping[str, Any]
PARTS = {f"{part}_settings": part for part in ("method", "optimizer", "averaging", "virtual")}
REGISTRIES = {
    "method": ("mecam.methods", "METHODS"),
    "optimizer": ("mecam.optim", "OPTIMIZERS"),
    "averaging": ("mecam.averaging", "AVERAGINGS"),
    "virtual": ("mecam.virtual", "DOMAINS"),
    "backbone": ("mecam.models", "BACKBONES"),
}


def registry(part: str) -> Registry[Any]:
    """Return the registry of a recipe's part, imported on demand."""
    module, name = REGISTRIES[part]
    named: Registry[Any] = getattr(importlib.import_module(module), name)
    return named


def merge(blocks: Sequence[Entries], given: Entries) -> list[dict[str, Any]]:
    """Return the blocks with `given` in place of their entries; a given setting goes to the blocks that have it."""
    merged = [{**block, **given} for block in blocks]
    for table in PARTS:
        if table not in given:
            continue
        for block in (*blocks, given):
            check_table(table, block)
        check(table, given[table], merged)
        for block, old in zip(merged, blocks, strict=True):
            block[table] = {**old.get(table, {}), **_fitting(table, given[table], block)}
    return merged


def fit(run: Entries) -> dict[str, Any]:
    """Return the entries of one run without the settings that its parts lack."""
    return {**run, **{table: _fitting(table, run[table], run) for table in PARTS if table in run}}


def check(table: str, settings: Iterable[str], blocks: Sequence[Entries]) -> None:
    """Refuse a setting that no part in the blocks has, with near matches."""
    if not (owners := _named(blocks, PARTS[table])):
        return
    for setting in settings:
        known = dict.fromkeys(name for block in blocks for name in _known(table, block))
        if setting in known:
            continue
        if table == "virtual_settings" and not any(map(_has_virtual_domain, blocks)):
            optimizers = ", ".join(_named(blocks, "optimizer"))
            raise RecipeError(f"virtual_settings.{setting} needs an optimizer with a virtual domain, got {optimizers}")
        who = f"{' and '.join(owners)} {'has' if len(owners) == 1 else 'have'}"
        near = hint(setting, known, otherwise="known are") if known else "there are none"
        raise RecipeError(f"{who} no setting {setting!r}; {near}")


def check_table(table: str, block: Entries) -> None:
    if not isinstance(block.get(table, {}), dict):
        raise RecipeError(f"{table}={block[table]!r} is not a table; use {table}.NAME=VALUE")


def _fitting(table: str, settings: Entries, entries: Entries) -> dict[str, Any]:
    known = _known(table, entries) if settings else ()
    return {name: value for name, value in settings.items() if name in known}


def _known(table: str, entries: Entries) -> list[str]:
    """Return the settings of the parts that these entries name; a list names several."""
    if table == "optimizer_settings":
        return _of_optimizers(entries)
    if table == "virtual_settings":
        from mecam.training.build import known_virtual_settings

        names = _listed(entries, "virtual") if _has_virtual_domain(entries) else []
        return list(itertools.chain.from_iterable(map(known_virtual_settings, names)))
    part = PARTS[table]
    return [setting for name in _listed(entries, part) for setting in registry(part).defaults(name)]


def _of_optimizers(entries: Entries) -> list[str]:
    from mecam.optim.registry import known_settings

    pairs = itertools.product(_listed(entries, "optimizer"), _listed(entries, "base"))
    return [name for optimizer, base in pairs for name in known_settings(optimizer, base=base)]


def _has_virtual_domain(entries: Entries) -> bool:
    """Return whether one of the optimizers takes a pass on a virtual domain."""
    return "virtual_domain" in _of_optimizers(entries)


def _named(blocks: Sequence[Entries], part: str) -> list[str]:
    return list(dict.fromkeys(name for block in blocks for name in _listed(block, part)))


def _listed(entries: Entries, part: str) -> list[str]:
    """Return the names of a part. The recipe refuses values that are not strings."""
    if part == "optimizer" and part not in entries:
        return list(dict.fromkeys(OPTIMIZERS.get(method, Recipe.optimizer) for method in _listed(entries, "method")))
    value = entries.get(part, getattr(Recipe, part))
    return [name for name in (value if isinstance(value, list) else [value]) if isinstance(name, str)]

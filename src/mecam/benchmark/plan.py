"""From an experiment to its runs: lists multiply, targets unfold, each run is named by its recipe's content.

An experiment is a table of recipe entries in which a list stands for all of its values:

    {"data": "shapes", "target": "all", "optimizer": ["adam", "mecam"], "seed": [0, 1, 2]}

is 4 targets x 2 optimizers x 3 seeds. `optimizer_settings.rho = [0.05, 0.1]` sweeps a hyperparameter of the optimizers
that have it: mecam then runs at both values, adam once. With `profile = "paper"` the entries that are not given follow
from the data set: `mecam list profiles`.
"""

from __future__ import annotations

import itertools
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mecam.benchmark import settings
from mecam.recipe import Recipe, RecipeError, make, spelled

SETTINGS = tuple(settings.PARTS)
ALL = "all"


@dataclass(frozen=True)
class Experiment:
    """Blocks of runs under one title; each block multiplies on its own."""

    title: str
    blocks: tuple[Mapping[str, Any], ...]
    about: str = ""
    small: Mapping[str, Any] = field(default_factory=dict)  # what the small version on the embedded set changes


def read(path: Path) -> Experiment:
    """Read an experiment from a TOML file: title, about, [common], [[runs]], [small].

    `runs_from = "table2.toml"`, in place of [[runs]], takes those of another experiment; [common] and [small] then
    override the other's.
    """
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise RecipeError(f"there is no experiment {path}") from None
    except IsADirectoryError:
        raise RecipeError(f"{path} is a folder and not an experiment; images are given with --data {path}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise RecipeError(f"{path} is not a TOML file: {error}") from error
    unknown = set(values) - {"title", "about", "common", "runs", "runs_from", "small"}
    if unknown or ("runs" in values) == ("runs_from" in values):
        what = f"has an unknown entry {sorted(unknown)[0]!r}" if unknown else "needs either [[runs]] or runs_from"
        raise RecipeError(f"{path} {what}; an experiment has title, about, [common], [[runs]] and [small]")
    other = read(path.parent / str(values["runs_from"])) if "runs_from" in values else Experiment("", ())
    runs = values.get("runs", [{}])
    tables = {"common": [values.get("common", {})], "runs": runs, "small": [values.get("small", {})]}
    for name, among in tables.items():
        if not isinstance(among, list) or not all(isinstance(table, dict) for table in among):
            expected = "[[runs]] tables" if name == "runs" else f"a table [{name}]"
            raise RecipeError(f"{path}: {name} must be {expected}")
    common, small = values.get("common", {}), {**other.small, **values.get("small", {})}
    blocks = tuple({**block, **common} for block in other.blocks) or tuple({**common, **block} for block in runs)
    return Experiment(values.get("title", path.stem), blocks, values.get("about", ""), small)


def shrink(experiment: Experiment) -> Experiment:
    """Its small version: the blocks of its first data set, on the embedded one, with what [small] says."""
    kept = ("method", "optimizer", "base", "averaging", "virtual", "lr_schedule", "rho_schedule", *SETTINGS)
    first = experiment.blocks[0].get("data")
    blocks = [
        {**{name: value for name, value in block.items() if name in kept}, "target": ALL, **experiment.small}
        for block in experiment.blocks
        if block.get("data") == first
    ]
    return Experiment(experiment.title, tuple(blocks), experiment.about)


def expand(blocks: Sequence[Mapping[str, Any]], domains: Mapping[str, Sequence[str]]) -> list[Recipe]:
    """Every run of the blocks, each once, in a stable order. `domains` gives those of each data set."""
    recipes: dict[str, Recipe] = {}
    for block in blocks:
        for values in map(settings.fit, _product(block)):
            data = spelled(values.get("data", "shapes"))
            targets = domains[data] if values.get("target") == ALL else [values.get("target")]
            for target in targets:
                recipe = make(_without_none({**values, "target": target}))
                recipes.setdefault(recipe.run_id, recipe)
    return list(recipes.values())


def data_sets(blocks: Sequence[Mapping[str, Any]]) -> list[str]:
    """The data sets that the blocks name, as their recipes spell them."""
    named = [block.get("data", "shapes") for block in blocks]
    names = (name for entry in named for name in (entry if isinstance(entry, list) else [entry]))
    return list(dict.fromkeys(map(spelled, names)))


def _product(block: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    for name in SETTINGS:
        settings.check_table(name, block)
        settings.check(name, block.get(name, {}), [block])
    leaves: list[tuple[tuple[str, ...], Any]] = [
        ((name, key), value) for name in SETTINGS for key, value in block.get(name, {}).items()
    ]
    leaves += [((name,), value) for name, value in block.items() if name not in SETTINGS]
    places = [place for place, _ in leaves]
    choices = [value if isinstance(value, list) and not _is_pair(place) else [value] for place, value in leaves]
    for place, among in zip(places, choices, strict=True):
        if not among:
            raise RecipeError(f"{'.'.join(place)} is an empty list: there would be no run")
        if len({repr(value) for value in among}) < len(among):
            raise RecipeError(f"{'.'.join(place)} = {among} names a value twice")
    for chosen in itertools.product(*choices):
        values: dict[str, Any] = {}
        for (*table, name), value in zip(places, chosen, strict=True):
            (values.setdefault(table[0], {}) if table else values)[name] = value
        yield values


def _is_pair(place: tuple[str, ...]) -> bool:
    """Whether a list is the value itself: Adam's betas."""
    return place[-1] == "betas"


def _without_none(values: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}

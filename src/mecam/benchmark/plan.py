"""Expand an experiment into its runs: lists multiply, and each domain is the target in turn.

An experiment is a table of recipe entries in which a list stands for all of its values:

    {"data": "shapes", "target": "all", "optimizer": ["adam", "mecam"], "seed": [0, 1, 2]}

is 4 targets x 2 optimizers x 3 seeds. `optimizer_settings.rho = [0.05, 0.1]` sweeps a hyperparameter of the optimizers
that have it: mecam then runs at both values, adam once. With `profile = "paper"` the entries that are not given follow
from the data set: `mecam list profiles`.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mecam import recipe
from mecam.benchmark import settings
from mecam.recipe import Recipe, RecipeError

SETTINGS = tuple(settings.PARTS)
ALL = "all"


@dataclass(frozen=True)
class Experiment:
    """Blocks of runs; the lists of a block multiply."""

    blocks: tuple[Mapping[str, Any], ...]
    small: Mapping[str, Any] = field(default_factory=dict)  # what the small version on the embedded set changes


def read(path: Path) -> Experiment:
    """Read an experiment from a TOML file: title, about, [common], [[runs]], [small].

    `runs_from = "table2.toml"`, in place of [[runs]], takes those of another experiment; [common] and [small] then
    override the other's.
    """
    values = recipe.read(path, "an experiment")
    unknown = set(values) - {"title", "about", "common", "runs", "runs_from", "small"}
    if unknown or ("runs" in values) == ("runs_from" in values):
        what = f"has an unknown entry {sorted(unknown)[0]!r}" if unknown else "needs either [[runs]] or runs_from"
        raise RecipeError(f"{path} {what}; an experiment has title, about, [common], [[runs]] and [small]")
    other = read(path.parent / str(values["runs_from"])) if "runs_from" in values else Experiment(())
    runs = values.get("runs", [{}])
    tables = {"common": [values.get("common", {})], "runs": runs, "small": [values.get("small", {})]}
    for name, among in tables.items():
        if not isinstance(among, list) or not all(isinstance(table, dict) for table in among):
            expected = "[[runs]] tables" if name == "runs" else f"a table [{name}]"
            raise RecipeError(f"{path}: {name} must be {expected}")
    common, small = values.get("common", {}), {**other.small, **values.get("small", {})}
    blocks = tuple({**block, **common} for block in other.blocks) or tuple({**common, **block} for block in runs)
    return Experiment(blocks, small)


def shrink(experiment: Experiment) -> Experiment:
    """Return the small version: the blocks of the first data set, on the embedded one, with the entries of [small]."""
    kept = ("method", "optimizer", "base", "averaging", "virtual", "lr_schedule", "rho_schedule", *SETTINGS)
    first = experiment.blocks[0].get("data")
    blocks = [
        {**{name: value for name, value in block.items() if name in kept}, "target": ALL, **experiment.small}
        for block in experiment.blocks
        if block.get("data") == first
    ]
    return Experiment(tuple(blocks))


def expand(blocks: Sequence[Mapping[str, Any]], domains: Callable[[Mapping[str, Any]], Sequence[str]]) -> list[Recipe]:
    """Return every run of the blocks once, by seed and then in their order: a first seed can be compared early.

    `domains` returns those of the data that these entries of a recipe name. An entry that a run does not use is left
    out of it; one that no run uses is an error.
    """
    from mecam.training.unused import unused  # which imports torch

    recipes: dict[str, Recipe] = {}
    idle: dict[str, str] = {}
    used: set[str] = set()
    plain = recipe.baseline()
    for block in blocks:
        for given in map(settings.fit, _product(block)):
            reasons = unused(Recipe(**given))
            values = {name: value for name, value in given.items() if name not in reasons}
            used.update(name for name, value in values.items() if value != plain.get(name))
            idle.update({name: reasons[name] for name in given if name in reasons and given[name] != "none"})
            target = values.get("target")
            sources = recipe.names_in(values.get("sources"))
            targets = [name for name in domains(values) if name not in sources] if target == ALL else [target]
            if not targets:
                data = values.get("data", Recipe.data)
                raise RecipeError(
                    f"sources={values['sources']} are all domains of {data}; leave one out for the target"
                )
            for target in targets:
                run = Recipe(**{**values, "target": target})
                recipes.setdefault(run.run_id, run)
    for name, reason in idle.items():
        if name not in used:
            raise RecipeError(reason)
    return sorted(recipes.values(), key=lambda run: run.seed)


def _product(block: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    for name in SETTINGS:
        settings.check_table(name, block)
        settings.check(name, block.get(name, {}), [block])
    leaves: list[tuple[tuple[str, ...], Any]] = [
        ((name, key), value) for name in SETTINGS for key, value in block.get(name, {}).items()
    ]
    leaves += [((name,), value) for name, value in block.items() if name not in SETTINGS]
    places = [place for place, _ in leaves]
    # a list of betas is one value
    choices = [value if isinstance(value, list) and place[-1] != "betas" else [value] for place, value in leaves]
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

"""Hyperparameter searches: the paper's grid, and DomainBed's random draws."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from mecam import methods
from mecam.data.splits import seed_hash
from mecam.optim.hyperparameters import Choice, Hyperparameter, LogUniform, Search, Uniform
from mecam.optim.registry import find as find_optimizer
from mecam.recipe import PROTOCOL, Recipe, make

LR, RHO, WEIGHT = (1e-6, 1e-5, 3e-5), (0.01, 0.05, 0.1, 0.2), (0.05, 0.1, 0.15, 0.2)
GLOBAL: Mapping[str, Search] = {  # DomainBed's, for images of 224 pixels
    "lr": LogUniform(-5, -3.5),  # around Adam's on pretrained networks; for others in proportion to their default
    "weight_decay": LogUniform(-6, -2),
    "batch": LogUniform(3 * np.log10(2), 5.5 * np.log10(2)),
    "dropout": Choice((0.0, 0.1, 0.5)),
}


def paper_grid(*, ordered: bool = False) -> list[dict[str, Any]]:
    """MeCAM's 192 points: lr x rho x alpha x beta; the 120 with beta <= alpha if `ordered`."""
    return [
        {"lr": lr, "optimizer_settings": {"rho": rho, "alpha": alpha, "beta": beta}}
        for lr in LR
        for rho in RHO
        for alpha in WEIGHT
        for beta in WEIGHT
        if beta <= alpha or not ordered
    ]


def with_grid(recipes: Sequence[Recipe], points: Sequence[Mapping[str, Any]]) -> list[Recipe]:
    """Every recipe at every point of the grid."""
    found = []
    for recipe in recipes:
        for point in points:
            values = recipe.to_dict()
            settings = {**values["optimizer_settings"], **point.get("optimizer_settings", {})}
            found.append(_remade({**values, **point, "optimizer_settings": settings}))
    return found


def with_draws(recipes: Sequence[Recipe], draws: int) -> list[Recipe]:
    """Every recipe with `draws` sets of hyperparameters; the first is its own, the others are random.

    Each hyperparameter has a stream of its own, RandomState(seed_hash(seed_hash(draw, trial), name)), so that a draw
    does not depend on what else is searched.
    """
    return [_drawn(recipe, draw) for recipe in recipes for draw in range(draws)]


def _drawn(recipe: Recipe, draw: int) -> Recipe:
    if draw == 0:
        return recipe
    values = recipe.to_dict()
    for name, search in GLOBAL.items():
        if name == "batch" and recipe.method == "arm":
            continue  # its batch is its support
        value = _sample(search, recipe, draw, name)
        values[name] = int(value) if name == "batch" else value
    values["lr"] *= _usual_lr(recipe) / PROTOCOL["lr"]
    method, optimizer = methods.registry.find(recipe.method), find_optimizer(recipe.optimizer)
    own: dict[str, Mapping[str, Hyperparameter]] = {"method_settings": method.hyperparameters}
    own["optimizer_settings"] = {
        name: declared for name, declared in optimizer.hyperparameters.items() if name not in GLOBAL
    }
    for table, declared in own.items():
        for name, hyperparameter in declared.items():
            if hyperparameter.search is not None:
                value = _sample(hyperparameter.search, recipe, draw, name)
                values[table] = {**values[table], name: int(value) if hyperparameter.integer else value}
    return _remade(values)


def _usual_lr(recipe: Recipe) -> float:
    return make({"data": recipe.data, "optimizer": recipe.optimizer, "base": recipe.base}).lr


def _sample(search: Search, recipe: Recipe, draw: int, name: str) -> float:
    random = np.random.RandomState(seed_hash(seed_hash(draw, recipe.seed), name))
    match search:
        case Choice(among):
            return float(random.choice(np.array(among)))
        case Uniform(low, high):
            return float(random.uniform(low, high))
        case LogUniform(low, high):
            return float(10 ** random.uniform(low, high))


def _remade(values: Mapping[str, Any]) -> Recipe:
    return make({name: value for name, value in values.items() if value is not None})

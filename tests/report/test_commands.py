"""The recipe and the command on the page give the same run again."""

from __future__ import annotations

import shlex
import tomllib
from typing import Any

import pytest
import typer

from mecam.cli import app
from mecam.recipe import Recipe, compose
from mecam.report.commands import command, toml

RECIPES: list[dict[str, Any]] = [
    {},
    {"target": "sketch", "optimizer": "mecam", "optimizer_settings": {"rho": 0.05, "alpha": 1e-3}, "seed": 3},
    {"data": '/images/it\'s a "set"', "target": "new\nline \\ and \x7f", "steps": 10, "backbone": "resnet18"},
    {"optimizer": "sgd", "lr": 0.5, "compile": True, "pretrained": False, "selection": "last"},
    {"optimizer": "sam", "base": "sgd", "method": "arm", "averaging": "swad", "weight_decay": 1e-4, "balanced": True},
    {"method_settings": {"sizes": [1, 2], "mode": "true", "odd": {"a": float("inf")}}, "freeze_bn": True},
]


@pytest.mark.parametrize("values", RECIPES)
def test_toml_gives_the_recipe_back(values: dict[str, Any]) -> None:
    recipe = Recipe(**values)
    assert Recipe(**tomllib.loads(toml(recipe))) == recipe


@pytest.mark.parametrize("values", RECIPES)
def test_command_gives_the_recipe_back(values: dict[str, Any]) -> None:
    recipe = Recipe(**values)
    assert parsed(command(recipe)) == recipe


def test_command_leaves_out_what_is_the_default() -> None:
    words = command(Recipe(target="art", optimizer="mecam", optimizer_settings={"rho": 0.2}))
    assert words == (
        "mecam train --data shapes --target art --method erm --optimizer mecam --averaging none --seed 0 "
        "--set optimizer_settings.rho=0.2"
    )


def parsed(words: str) -> Recipe:
    """What `mecam train` makes of its words."""
    _, command, *rest = shlex.split(words)
    given = typer.main.get_command(app).commands[command].make_context(command, rest).params  # type: ignore[attr-defined]
    entries = {name: value for name, value in given.items() if name in Recipe.__dataclass_fields__}
    return compose(None, entries, given["set_"] or ())

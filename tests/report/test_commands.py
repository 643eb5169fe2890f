"""The recipe and the command on the page give the same run again."""

from __future__ import annotations

import shlex
import tomllib
from typing import Any

import pytest

from mecam.recipe import Recipe, assign, make
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
    recipe = make(values)
    assert make(tomllib.loads(toml(recipe))) == recipe


@pytest.mark.parametrize("values", RECIPES)
def test_command_gives_the_recipe_back(values: dict[str, Any]) -> None:
    recipe = make(values)
    assert parsed(command(recipe)) == recipe


def test_command_leaves_out_what_is_the_default() -> None:
    words = command(make({"target": "art", "optimizer": "mecam", "optimizer_settings": {"rho": 0.2}}))
    assert words == (
        "mecam train --data shapes --target art --method erm --optimizer mecam --averaging none --seed 0 "
        "--set optimizer_settings.rho=0.2"
    )


def parsed(words: str) -> Recipe:
    """What `mecam train` makes of its words."""
    values: dict[str, Any] = {}
    _, _, *rest = shlex.split(words)
    while rest:
        name = rest.pop(0).removeprefix("--")
        if name in ("compile", "pretrained", "no-compile", "no-pretrained"):
            values[name.removeprefix("no-")] = not name.startswith("no-")
        elif name == "set":
            assign(values, rest.pop(0))
        else:
            text = rest.pop(0)
            values[name] = int(text) if name in ("steps", "seed") else text
    return make(values)

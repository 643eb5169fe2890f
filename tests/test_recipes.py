"""Every experiment in recipes/ can be read, unfolds into runs that exist, and takes two steps on one target."""

import csv
from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

from mecam.benchmark.plan import expand, read, shrink
from mecam.benchmark.settings import merge
from mecam.data.known import KNOWN
from mecam.data.shapes import ShapesSet, shapes
from mecam.methods.registry import find as find_method
from mecam.optim.registry import find as find_optimizer
from mecam.profiles import LR_RATIOS, V1
from mecam.recipe import Recipe
from mecam.training.machine import find_machine
from mecam.training.run import Run
from mecam.training.step import train_step

FILES = sorted((Path(__file__).parents[1] / "recipes").glob("*.toml"))
DOMAINS = {**{name: known.domains for name, known in KNOWN.items()}, "shapes": ("art", "cartoon", "photo", "sketch")}
RUNS = {  # targets x seeds x rows, summed over the data sets
    "table2": 22 * 3 * 23,
    "table3": 22 * 3 * 13,
    "table4": 22 * 3 * 15,
    "figure1": 8 * 3 * 23,
    "figure4": 4 * 3,
    "figure3": 4 * 3 * 7 * 5,
    "figure_rho": 4 * 3 * 12,
    "figure_alpha_beta": 4 * 3 * 17,
    "demo": 4 * 7 * 3,
    "pacs_search": 2 * 8 * 4,
    "pacs_main": 4 * 3 * 12,
    "pacs_long": 4 * 3,
    "pacs_parts": 4 * 3 * 12,
    "pacs_beyond": 4 * 3 * 7,
    "pacs_resnet50": 4 * 3 * 10,
}


def domains_of(values: Mapping[str, Any]) -> Sequence[str]:
    return DOMAINS[values["data"]]


@pytest.fixture(scope="module")
def data() -> ShapesSet:
    return shapes(per_class=4)


def test_all_experiments_are_there() -> None:
    assert {file.stem for file in FILES} == set(RUNS)


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_an_experiment_unfolds(file: Path) -> None:
    runs = expand(read(file).blocks, domains_of)
    assert len(runs) == RUNS[file.stem]
    for recipe in runs:
        find_method(recipe.method), find_optimizer(recipe.optimizer)


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_its_small_version_takes_two_steps(file: Path, data: ShapesSet) -> None:
    tiny = {"target": "sketch", "steps": 1, "batch": 2, "image_size": 16, "seed": 0}
    for recipe in expand(merge(shrink(read(file)).blocks, tiny), domains_of):
        run = Run(recipe, find_machine("cpu"), data)
        for step in range(2):
            train_step(run, step)
        assert all(parameter.isfinite().all() for parameter in run.trained.parameters()), recipe.run_id


def stated(file: str, data: str, name: str | None = None) -> dict[str, float]:
    """The numbers in a row of a published file; none where there is no such row."""
    with (files("mecam") / "published" / file).open(encoding="utf-8") as text:
        rows = [row for row in csv.DictReader(text) if row["dataset"] == data and row.get("name") == name]
    words = ("name", "dataset", "source")
    return {key: float(cell) for row in rows for key, cell in row.items() if key not in words and cell}


def of_sagm(recipe: Recipe) -> dict[str, Any]:
    """The settings that a rival shares with SAGM, and those of its own."""
    sagm = stated("rivals.csv", recipe.data, "SAGM")
    shared = {name: sagm[name] for name in ("lr", "weight_decay", "dropout")}
    own: dict[str, dict[str, Any]] = {"sgd": {"lr": 1e-3, "momentum": 0.9}, "sam": {"rho": 0.05}, "sagm": sagm}
    own |= {name: {"lr": sagm["lr"] * LR_RATIOS[name]} for name in ("yogi", "adahessian")}
    return shared | own.get(recipe.optimizer, {}) | stated("rivals.csv", recipe.data, recipe.averaging.upper())


def of_domainbed(recipe: Recipe) -> dict[str, Any]:
    """The settings of a row of Table 2, unless its authors give some."""
    long, own = recipe.data == "DomainNet", {"miro": "MIRO", "mdsdi": "mDSDI"}.get(recipe.method)
    if own is not None:
        return stated("rivals.csv", recipe.data, own)
    plain = {"lr": 5e-5, "weight_decay": 0.0, "dropout": 0.0, "evaluate_every": 1000 if long else 300}
    fish = {"optimizer": "sgd", "lr": 0.5, "momentum": 0.0}
    return plain | {"arm": {"batch": 8}, "fish": fish}.get(recipe.method, {"optimizer": "adam"})


PAPER = ("table2", "table3", "table4", "figure1", "figure3", "figure_rho", "figure_alpha_beta")
SWEPT = {"figure3": {"steps"}, "figure_rho": {"rho"}, "figure_alpha_beta": {"alpha", "beta"}}


@pytest.mark.parametrize(
    "name", ["table2", "table3", "table4", "figure1", "figure3", "figure_rho", "figure_alpha_beta"]
)
def test_the_runs_of_the_paper_have_the_published_settings(name: str) -> None:
    [file] = [file for file in FILES if file.stem == name]
    differing = []
    for recipe in expand(read(file).blocks, domains_of):
        mecam = stated("hyperparameters.csv", recipe.data)
        common = {"backbone": V1, "pretrained": True, "freeze_bn": True, "image_size": 224, "base": "adam", "batch": 32}
        common |= {"steps": mecam["steps"], "evaluate_every": 100, "selection": "validation", "virtual": "mixstyle"}
        if recipe.optimizer == "mecam":
            own = mecam | stated("rivals.csv", recipe.data, recipe.averaging.upper())
        else:
            own = of_domainbed(recipe) if name in ("table2", "figure1") else of_sagm(recipe)
        found = recipe.to_dict() | recipe.optimizer_settings | recipe.method_settings | recipe.averaging_settings
        for key, value in (common | own).items():
            same = found[key] == (value if isinstance(value, (str, bool)) else pytest.approx(value, rel=1e-9))
            if key not in SWEPT.get(name, ()) and not same:
                differing.append((recipe.run_id, key, found[key], value))
    assert differing == []

"""Every experiment in recipes/ can be read, unfolds into runs that exist, and takes two steps on one target."""

from pathlib import Path

import pytest

from mecam.benchmark.plan import expand, override, read, shrink
from mecam.data.known import KNOWN
from mecam.data.shapes import ShapesSet, shapes
from mecam.methods.registry import find as find_method
from mecam.optim.registry import find as find_optimizer
from mecam.training.machine import find_machine
from mecam.training.run import Run

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
    "pacs_beyond": 4 * 3 * 17,
    "pacs_resnet50": 4 * 3 * 4,
    "pacs_resnet50_more": 4 * 3 * 6,
}


@pytest.fixture(scope="module")
def data() -> ShapesSet:
    return shapes(per_class=4)


def test_all_experiments_are_there() -> None:
    assert {file.stem for file in FILES} == set(RUNS)


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_an_experiment_unfolds(file: Path) -> None:
    runs = expand(read(file).blocks, DOMAINS)
    assert len(runs) == RUNS[file.stem]
    for recipe in runs:
        find_method(recipe.method), find_optimizer(recipe.optimizer)


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_its_small_version_takes_two_steps(file: Path, data: ShapesSet) -> None:
    tiny = {"target": "sketch", "steps": 1, "batch": 2, "image_size": 16, "seed": 0}
    for recipe in expand(override(shrink(read(file)).blocks, tiny), DOMAINS):
        run = Run(recipe, find_machine("cpu"), data)
        for step in range(2):
            run.step(step)
        assert all(parameter.isfinite().all() for parameter in run.trained.parameters()), recipe.run_id

"""--sources: the domains to train on."""

from pathlib import Path

import pytest

from mecam.benchmark.experiment import plan_runs
from mecam.data.domains import DataError
from mecam.data.shapes import shapes
from mecam.recipe import Recipe, RecipeError, departures
from mecam.serving.model import load_model
from mecam.training import train
from mecam.training.machine import find_machine
from mecam.training.run import Run

DATA = shapes(per_class=4)
SMALL = {"steps": 2, "batch": 4, "image_size": 16}


def test_a_run_sees_its_sources_and_its_target_alone(tmp_path: Path) -> None:
    recipe = Recipe(sources="photo, art", target="sketch", **SMALL)
    run = Run(recipe, find_machine("cpu"), DATA)
    assert {split.domain for split in run.splits} == {"photo", "art", "sketch"}
    assert [DATA.domains[domain] for domain in run.feed.sources] == ["art", "photo"]
    result = train(recipe, tmp_path, device="cpu", data=DATA).read_result()
    assert set(result["splits"]) == {
        f"{domain} {part}" for domain in ("photo", "art", "sketch") for part in ("in", "out")
    }


def test_a_model_with_parameters_per_source_is_loaded(tmp_path: Path) -> None:
    run = train(
        Recipe(method="mdsdi", sources="photo,art", target="sketch", **SMALL), tmp_path, device="cpu", data=DATA
    )
    assert len(load_model(run.path).classes) == len(DATA.classes)


def test_a_single_source() -> None:
    run = Run(Recipe(sources="photo", target="sketch", **SMALL), find_machine("cpu"), DATA)
    assert len(run.feed.next(0).labels) == 4
    with pytest.raises(RecipeError, match="coral needs at least 2 source domains, got 1"):
        Run(Recipe(sources="photo", target="sketch", method="coral", **SMALL), find_machine("cpu"), DATA)


def test_a_benchmark_leaves_out_each_domain_that_is_no_source() -> None:
    runs = plan_runs(None, {"sources": "photo,art", "seeds": "0"}, ())
    assert [(run.sources, run.target) for run in runs] == [("art,photo", "cartoon"), ("art,photo", "sketch")]


def test_a_probe_trains_on_the_same_sources() -> None:
    options = {"sources": "photo,art", "target": "sketch", "seeds": "0", "backbone": "lite0small"}
    runs = plan_runs(None, options, (), probe=True)
    assert {(run.trainable, run.sources) for run in runs} == {("all", "art,photo"), ("head", "art,photo")}


def test_the_order_of_sources_is_not_a_part_of_the_run() -> None:
    recipe = Recipe(sources=r"photo, art\, old", target="sketch")
    assert recipe == Recipe(sources=r"art\, old,photo,photo", target="sketch")
    assert recipe == Recipe(**departures(recipe)) == Recipe.from_dict(recipe.to_dict())
    assert recipe.run_id != Recipe(sources="photo", target="sketch").run_id


def test_bad_sources_are_refused() -> None:
    with pytest.raises(RecipeError, match="target=photo is one of sources=art,photo; leave it out of one of them"):
        Recipe(sources="photo,art", target="photo")
    with pytest.raises(RecipeError, match="sources=photo,art,sketch,cartoon are all domains of shapes; leave one out"):
        plan_runs(None, {"sources": "photo,art,sketch,cartoon", "seeds": "0"}, ())
    with pytest.raises(DataError, match="shapes has no domain 'foto'; did you mean photo"):
        Run(Recipe(sources="foto", target="art", **SMALL), find_machine("cpu"), DATA)

"""What a machine decides of a run: the batch by its memory, the steps by a time budget."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import mecam
from mecam.data.domains import DomainSet
from mecam.data.shapes import ShapesSet, shapes
from mecam.recipe import Recipe, RecipeError, recipe_of
from mecam.runs import RunError
from mecam.training import sizing
from mecam.training.machine import Machine, find_machine
from mecam.training.sizing import Length, Sized, size
from mecam.training.speed import Cost

LARGE = {"data": "root", "backbone": "resnet18", "image_size": 224}


@pytest.fixture(scope="module")
def data() -> ShapesSet:
    return shapes(per_class=6)


@pytest.fixture
def machine() -> Machine:
    return find_machine("cpu")


@pytest.fixture
def speed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that takes a second for 8 images per domain, two for an evaluation and six for the last one."""

    def cost_of(recipe: Recipe, _machine: Machine, _data: DomainSet) -> Cost:
        return Cost(step=recipe.batch / 8, evaluation=2.0, final=6.0)

    monkeypatch.setattr(sizing, "cost_of", cost_of)
    monkeypatch.setattr(sizing, "available_memory", lambda _: None)


@pytest.mark.usefixtures("speed")
@pytest.mark.parametrize(
    ("minutes", "given", "batch"), [(60, {}, 32), (10, {}, 8), (1, {}, 4), (10, {"batch": 16}, 16)]
)
def test_minutes_set_steps_that_fit_and_a_batch_that_allows_enough(
    minutes: float, given: dict[str, int], batch: int, data: ShapesSet, machine: Machine
) -> None:
    recipe = Recipe(**LARGE, steps=5000, warmup=500, lr_schedule="cosine", **given)
    sized = size(Length(recipe, minutes, frozenset(given)), machine, data)
    chosen = sized.recipe
    assert chosen.batch == batch
    assert sized.seconds is not None
    assert 0.6 * 60 * minutes < sized.seconds <= sizing.MARGIN * 60 * minutes
    evaluations = chosen.steps // chosen.evaluate_every + 1
    assert 2 <= evaluations <= 51
    assert 2.0 * evaluations <= 0.25 * 60 * minutes
    assert chosen.warmup == round(chosen.steps / 10)  # schedules are stretched
    assert (chosen.lr, chosen.lr_schedule, chosen.seed) == (recipe.lr, "cosine", 0)
    assert recipe.steps == 5000


@pytest.mark.usefixtures("speed")
def test_entries_that_are_given_stay(data: ShapesSet, machine: Machine) -> None:
    recipe = Recipe(**LARGE, warmup=7, evaluate_every=3)
    sized = size(Length(recipe, 10, frozenset({"warmup", "evaluate_every"})), machine, data)
    assert (sized.recipe.warmup, sized.recipe.evaluate_every) == (7, 3)
    assert sized.seconds is not None
    assert sized.seconds <= 540


@pytest.mark.usefixtures("speed")
def test_a_budget_that_is_too_short_is_refused_with_one_that_is_enough(data: ShapesSet, machine: Machine) -> None:
    recipe = Recipe(**LARGE)
    with pytest.raises(RecipeError, match=r"fewer than 10 steps of 4\.0 s; give --minutes 2 or more, --trainable head"):
        size(Length(recipe, 1, frozenset({"batch"})), machine, data)
    assert size(Length(recipe, 2, frozenset({"batch"})), machine, data).recipe.steps >= 10
    for minutes in (0.0, -1.0, float("inf"), float("nan")):
        with pytest.raises(RecipeError, match="it must be positive and finite"):
            Length(recipe, minutes, frozenset())
    with pytest.raises(RecipeError, match="minutes sets the steps; leave out one of minutes and steps"):
        Length(recipe, 1, frozenset({"steps"}))


def test_the_batch_fits_into_memory(data: ShapesSet, machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sizing, "cost_of", lambda *_: Cost(1.0))
    monkeypatch.setattr(sizing, "memory_of_step", lambda *_: (1e9, 1e8))
    recipe = Recipe(**LARGE)

    def batch(gigabytes: float, **given: int) -> tuple[int, str]:
        monkeypatch.setattr(sizing, "available_memory", lambda _: 1e9 * gigabytes)
        sized = size(Length(Recipe(**LARGE, **given), None, frozenset(given)), machine, data)
        return sized.recipe.batch, sized.reason

    assert batch(5) == (32, "")
    assert batch(4) == (16, "; 32 images per domain take about 4.2 GB, and 3.6 GB are free")
    assert batch(0.5) == (1, "; 32 images per domain take about 4.2 GB, and 0.5 GB are free")
    assert batch(0.5, batch=64) == (64, "")
    assert recipe.batch == 32


def test_small_runs_and_runs_on_features_are_not_measured(data: ShapesSet, machine: Machine) -> None:
    for recipe in (Recipe(target="sketch"), Recipe(data="root", trainable="head")):
        assert size(Length(recipe, None, frozenset()), machine, data).cost is None
    tiny = Length(Recipe(target="sketch", steps=2, batch=2), None, frozenset())
    assert size(tiny, machine, data, measure=True).seconds is not None


def again(**entries: Any) -> Recipe:
    return Recipe(**{"data": "root", "optimizer": "mecam", **entries})


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (again, [{}, {"trainable": "head"}, {"minutes": 60}]),
        (lambda **entries: again(**entries, method="coral"), [{}, {"minutes": 60}, {"batch": 8, "steps": 500}]),
        (lambda **entries: again(**entries, backbone="resnet50"), [{"minutes": 60}, {"batch": 8, "steps": 500}]),
    ],
)
def test_cheaper_trainings_are_those_that_the_recipe_allows(
    make: Callable[..., Recipe], expected: list[dict[str, object]]
) -> None:
    sized = Sized(make(), 4, 1000, Cost(step=4.0, evaluation=2.0, final=6.0))
    assert sized.is_long
    assert sized.line().endswith("5,000 steps of 4 x 32 images of 224 pixels, mecam: about 5:35:12, 4.0 s per step")
    cheaper = sized.cheaper(make)
    assert [options for options, _ in cheaper] == expected
    if {"batch": 8, "steps": 500} in expected:
        assert cheaper[-1][1] == "about 8:39"  # 501 steps of a second, 6 evaluations and the last one


@pytest.mark.usefixtures("speed")
def test_entries_of_a_recipe_from_python_stay_as_they_are(tmp_path: Path, data: ShapesSet) -> None:
    recipe = Recipe(backbone="resnet8", optimizer="adam", batch=16, steps=5000)
    run = mecam.train(recipe, tmp_path, data=data, minutes=1)
    assert recipe_of(run).batch == 16
    assert recipe_of(run).steps < 20


def test_what_was_decided_is_recalled_for_the_same_command(tmp_path: Path) -> None:
    length, chosen = Length(Recipe(data="root"), 10, frozenset({"data"})), Recipe(data="root", steps=77)
    out = tmp_path / "out"
    assert length.recall(out) is None
    length.keep(out, chosen)
    assert length.recall(out) == chosen
    for minutes, seed in ((20, 0), (None, 0), (10, 1)):
        assert Length(Recipe(data="root", seed=seed), minutes, frozenset({"data"})).recall(out) is None
    other = Length(Recipe(data="root", seed=1), 10, frozenset({"data"}))  # another run in the same folder
    other.keep(out, Recipe(data="root", seed=1, steps=66))
    assert (length.recall(out), other.recall(out)) == (chosen, Recipe(data="root", seed=1, steps=66))
    (file := out / "train.json").write_text(file.read_text().replace("77", "78"))
    with pytest.raises(RunError, match=r"train\.json is damaged"):
        length.recall(out)

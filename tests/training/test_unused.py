"""Entries that nothing in a run uses are refused, with the name that works."""

from pathlib import Path
from typing import Any

import pytest

from mecam.data.shapes import shapes
from mecam.recipe import Recipe, RecipeError
from mecam.runs import RunFolder
from mecam.training import train
from mecam.training.build import check_start
from mecam.training.rerun import rerun
from mecam.training.unused import check_used

SMALL = {"target": "art", "steps": 1, "evaluate_every": 1, "batch": 2, "image_size": 8}


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"optimizer_settings": {"lr": 5.0}}, r"optimizer_settings\.lr=5\.0 is not used: .*; give lr \(--lr\)"),
        ({"optimizer": "mecam", "optimizer_settings": {"lr": 5.0}}, r"give lr \(--lr\)"),
        ({"base": "sgd"}, "base=sgd is not used: adam .* give optimizer=sgd, or an optimizer that has a base"),
        ({"virtual": "dsu"}, "virtual=dsu is not used: adam has no pass .*: mecam, thinmecam"),
        ({"optimizer": "sam", "virtual": "dsu"}, "virtual=dsu is not used: sam has no pass .*: mecam, thinmecam"),
        ({"virtual_settings": {"p": 0.5}}, r"virtual_settings\.p is not used: adam has no pass"),
        (
            {"optimizer": "mecam", "virtual": "none", "virtual_settings": {"p": 0.5}},
            r"virtual_settings\.p is not used: virtual=none",
        ),
        ({"optimizer": "sam", "track_measures": True}, r"track_measures=true is not used: .*; give track=10"),
    ],
)
@pytest.mark.attack("What a number means")
def test_what_has_no_effect_is_refused(values: dict[str, Any], expected: str, tmp_path: Path) -> None:
    recipe = Recipe(**{**SMALL, **values})
    for refuse in (check_start, lambda recipe: train(recipe, tmp_path)):
        with pytest.raises(RecipeError, match=expected):
            refuse(recipe)
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize(
    "values",
    [
        {"virtual": "none"},
        {"trainable": "head", "backbone": "lite0"},  # whose default is virtual=none
        {"optimizer": "sam", "base": "sgd", "optimizer_settings": {"momentum": 0.5, "weight_decay": 0.1}},
        {"optimizer": "mecam", "virtual": "dsu", "virtual_settings": {"p": 0.5}},
        {"optimizer": "sam", "track": 5, "track_measures": True},
        {"method": "fish"},
    ],
)
def test_what_is_used_is_not(values: dict[str, Any]) -> None:
    check_used(Recipe(**{**SMALL, **values}))


def test_a_run_that_an_earlier_version_began_is_finished_and_repeated(tmp_path: Path) -> None:
    data, recipe = shapes(per_class=2), Recipe(**SMALL, base="sgd")
    RunFolder(tmp_path / recipe.run_id).begin(recipe.to_dict(), {}, run_id=recipe.run_id)
    folder = train(recipe, tmp_path, device="cpu", data=data)
    assert folder.is_done()
    assert rerun(folder, tmp_path / "again", device="cpu", data=data).is_same

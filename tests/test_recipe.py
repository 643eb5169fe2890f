"""Recipes: what follows from what, which words are refused, and what makes two runs the same run."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mecam.defaults import PROTOCOL, SHAPES
from mecam.recipe import Recipe, RecipeError, assign, departures, read, recipe_of
from mecam.runs import RunError
from mecam.storage.checksums import seal


def test_what_is_left_out_follows_from_the_data_and_the_optimizer() -> None:
    assert Recipe().to_dict().items() >= SHAPES.items()
    assert Recipe(data="photos").to_dict().items() >= {**PROTOCOL, "image_size": 224}.items()
    assert Recipe(data="photos", steps=7).steps == 7
    assert Recipe(optimizer="sgd").lr == 20 * SHAPES["lr"]
    assert Recipe(optimizer="sam", base="sgd").lr == 20 * SHAPES["lr"]
    assert Recipe(optimizer="sgd", lr=0.5).lr == 0.5
    assert Recipe() == Recipe()


@pytest.mark.parametrize(
    ("values", "shown"),
    [
        ({}, "Recipe()"),
        ({"data": "photos", "backbone": "lite0", "lr": 5e-5}, "Recipe(data='photos')"),
        ({"data": "photos", "trainable": "head", "steps": 5000}, "Recipe(data='photos', steps=5000, trainable='head')"),
        ({"optimizer": "sgd", "lr": 0.5}, "Recipe(optimizer='sgd', lr=0.5)"),
        ({"optimizer": "sgd", "lr": 20 * SHAPES["lr"]}, "Recipe(optimizer='sgd')"),
        ({"method": "fish", "optimizer": "sgd"}, "Recipe(method='fish')"),
        ({"target": "art", "selection": "oracle"}, "Recipe(target='art', selection='oracle')"),
        ({"method": "irm"}, "Recipe(method='irm')"),
        ({"optimizer": "mecam", "optimizer_settings": {"rho": 0.2}},
         "Recipe(optimizer='mecam', optimizer_settings={'rho': 0.2})"),
    ],
)  # fmt: skip
def test_a_repr_has_what_departs_from_the_defaults(values: dict[str, Any], shown: str) -> None:
    assert repr(Recipe(**values)) == shown
    assert Recipe(**departures(Recipe(**values))) == Recipe(**values)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"optimiser": "sam"}, "no entry 'optimiser'; did you mean optimizer"),
        ({"zzz": 1}, "no entry 'zzz'; known are accumulate, allow_missing_classes, augment"),
        ({"rho": 1}, r"no entry 'rho'; .* has its table's name before it, such as optimizer_settings\.rho$"),
        ({"learning_rate": 1}, r"no entry 'learning_rate'; did you mean lr\?$"),
        ({"Batch-Size": 1}, r"no entry 'Batch-Size'; did you mean batch\?$"),
        ({"steps": 1.5}, "steps=1.5 is a float; it must be a whole number"),
        ({"steps": True}, "steps=True is a bool; it must be a whole number"),
        ({"lr": "fast"}, "lr='fast' is a str; it must be a number"),
        ({"augment": 1}, "augment=1 is a int; it must be a string"),
        ({"balanced": 1}, "balanced=1 is a int; it must be true or false"),
        ({"augment": "crops"}, "augment='crops' is not allowed; it must be one of protocol, flips, randaugment, none"),
        ({"resize": "pad"}, "resize='pad' is not allowed; it must be one of squash, crop, letterbox"),
        ({"optimizer_settings": 3}, "optimizer_settings=3 is a int; it must be a table"),
        ({"selection": "best"}, "selection='best' is not allowed; it must be one of validation, last, oracle"),
        ({"precision": "fp8"}, "it must be one of auto, fp32, bf16"),
        ({"steps": -1}, "steps=-1 is not allowed; it must be at least 0"),
        ({"lr": float("nan")}, "lr=nan is not allowed"),
        ({"holdout": 1.0}, r"holdout=1.0 is not allowed; it must be in \[0, 1\)"),
        ({"selection": "oracle"}, "oracle looks at the target; give a target"),
    ],
)
def test_what_cannot_be_run_is_refused(values: dict[str, Any], message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        Recipe(**values)


@pytest.mark.parametrize(
    ("spelling", "canonical"),
    [
        ("clean/", "clean"),
        ("./clean", "clean"),
        ("a/../clean//", "clean"),
        ("../clean/.", "../clean"),
        ("~/clean/", "~/clean"),
        ("/disk//clean/", "/disk/clean"),
        ("shapes/", "./shapes"),
        ("a/../shapes", "./shapes"),
        ("./shapes", "./shapes"),
        ("./pacs/", "./pacs"),
        ("a/PACS/", "a/PACS"),
        *((plain, plain) for plain in ("clean", "a/clean", "/a/clean", "~/../clean", "shapes", "PACS", ".", "")),
    ],
)
def test_a_folder_is_spelled_in_one_way(spelling: str, canonical: str) -> None:
    recipe = Recipe(data=spelling)
    assert recipe.data == canonical
    assert recipe.run_id == Recipe(data=canonical).run_id
    assert (recipe.backbone == SHAPES["backbone"]) == (spelling == "shapes")


def test_a_path_that_goes_back_through_a_link_is_not_shortened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "far" / "away").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "far" / "away")
    monkeypatch.chdir(tmp_path)
    assert Recipe(data="link/../clean").data == "link/../clean"  # far/clean
    assert Recipe(data="link/").data == "link"


def test_plain_names_keep_the_run_ids_they_had() -> None:
    assert Recipe().run_id == "shapes-all-erm-adam-none-seed0-44136fa355"
    assert Recipe(data="data/clean", target="home").run_id == "clean-home-erm-adam-none-seed0-8b89401f69"


def test_run_ids_keep_names_of_other_scripts() -> None:
    for name in ("東京", "München", "प्रयोगशाला", "โรงพยาบาล"):
        assert Recipe(data=f"a/{name} 2", target=name).run_id.startswith(f"{name}-2-{name}-erm-adam-none-seed0-")
    assert Recipe(target="Mu\u0308nchen").run_id.split("-")[1] == "M\u00fcnchen"  # macOS stores letters in parts
    assert Recipe(target="a\udcff\u200bb").run_id.split("-")[1:3] == ["a", "b"]  # undecodable, of no width
    for name in ("京" * 60, "a" * 60):
        run_id = Recipe(data=name, target=name).run_id
        assert len(run_id.encode()) < 255, "the name of a folder"
        assert ("a" * 60 in run_id) == (name[0] == "a")


def test_augment_was_a_switch() -> None:
    for old, new in ((True, "protocol"), (False, "none")):
        assert Recipe(augment=old) == Recipe(augment=new) == Recipe.from_dict({**Recipe().to_dict(), "augment": old})
    assert Recipe(augment="none").run_id == "shapes-all-erm-adam-none-seed0-265d42d598", "as before"
    assert Recipe(augment="protocol").run_id == Recipe().run_id
    assert Recipe(data="photos", trainable="head").run_id == "photos-all-erm-adam-none-seed0-8b7277d22b", "as before"


def test_assignments_are_toml_values_or_text() -> None:
    values: dict[str, Any] = {"optimizer_settings": {"rho": 1}}
    for text in ("lr=3e-5", "optimizer_settings.rho=0.1", "data=my=folder", "augment=false", "method_settings.a.b=[1]"):
        assign(values, text)
    assert values == {
        "lr": 3e-5,
        "optimizer_settings": {"rho": 0.1},
        "data": "my=folder",
        "augment": False,
        "method_settings": {"a": {"b": [1]}},
    }
    for text in ("lr", "=3", "lr.rate=3"):
        with pytest.raises(RecipeError):
            assign(values, text)


def test_a_file_that_is_no_recipe(tmp_path: Path) -> None:
    (tmp_path / "bad.toml").write_text("steps = ")
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe\x00")
    for name in ("bad.toml", "binary.toml"):
        with pytest.raises(RecipeError, match=f"{name} is not a TOML file"):
            read(tmp_path / name)
    with pytest.raises(RecipeError, match="there is no recipe"):
        read(tmp_path / "none.toml")
    with pytest.raises(RecipeError, match="is a folder and not a recipe; images are given with --data"):
        read(tmp_path)


def test_the_name_of_a_run_says_what_it_is_and_depends_on_everything() -> None:
    recipe = Recipe(data="/my data/scans", target="site 2", optimizer="mecam", seed=3)
    assert recipe.run_id.startswith("scans-site-2-erm-mecam-none-seed3-")
    changed = [recipe]
    for name, value in recipe.to_dict().items():
        other = {"str": "x", "int": 9, "float": 0.5, "bool": value is not True, "dict": {"x": 1}, "NoneType": "x"}
        new = {"selection": "last", "precision": "fp32", "nonfinite": "skip", "freeze_bn": True, "pretrained": True}
        new |= {
            "lr_schedule": "cosine",
            "rho_schedule": "cosine",
            "trainable": "head",
            "class_weights": "balanced",
            "augment": "none",
            "compile": "always",
            "resize": "crop",
        }
        changed.append(Recipe(**{**recipe.to_dict(), name: new.get(name, other[type(value).__name__])}))
    assert len({one.run_id for one in changed}) == len(changed)


def test_penalties_that_a_network_from_scratch_cannot_learn_under_are_milder_on_the_embedded_set() -> None:
    assert Recipe(method="irm").method_settings == {"lam": 1.0}
    assert Recipe(method="irm", data="PACS").method_settings == {}
    assert Recipe(method="fishr", method_settings={"ema": 0.9}).method_settings == {"lam": 100.0, "ema": 0.9}
    assert Recipe(method="irm", method_settings={"lam": 100.0}).method_settings == {"lam": 100.0}


def test_a_stored_recipe_is_loaded_as_it_is() -> None:
    stored = {"data": "root", "method": "irm", "steps": 7, "record": False}  # no defaults by data, an older name
    recipe = Recipe.from_dict(stored)
    assert (recipe.backbone, recipe.steps, recipe.method_settings, recipe.capture) == ("resnet8", 7, {}, False)
    assert Recipe.from_dict(recipe.to_dict()) == replace(recipe) == Recipe(**recipe.to_dict()) == recipe
    assert replace(recipe, seed=1).method_settings == {}
    with pytest.raises(RecipeError, match="entries of another version of mecam"):
        Recipe.from_dict({"telescope": 1})
    with pytest.raises(RecipeError, match="steps='many' is a str"):
        Recipe.from_dict({"steps": "many"})


def test_compile_was_a_switch() -> None:
    assert Recipe(compile="always").run_id == "shapes-all-erm-adam-none-seed0-02f3891251", "as before"
    assert Recipe(compile=True) == Recipe(compile="always")  # type: ignore[arg-type]
    assert Recipe(compile=False) == Recipe() != Recipe(compile="never"), "the default"  # type: ignore[arg-type]


def test_capture_keeps_its_former_name_in_run_ids() -> None:
    assert Recipe(capture=False) == Recipe(record=False)  # type: ignore[call-arg]
    assert Recipe(capture=False).run_id == "shapes-all-erm-adam-none-seed0-7cf6484724"


def test_the_recipe_of_a_run_folder(tmp_path: Path) -> None:
    def of(run: object) -> Recipe:
        (tmp_path / "run.json").write_bytes(seal(run))
        return recipe_of(tmp_path)

    assert of({"recipe": {"seed": 3, "record": True}}) == Recipe(seed=3)
    for run, message in (
        ({"id": "x"}, "run.json is damaged: it holds no recipe"),
        ({"recipe": {"telescope": 1}}, r"run.json cannot be used: the recipe has entries of another version"),
        ({"recipe": {"lr": None}}, "run.json cannot be used: lr=None is a NoneType"),
    ):
        with pytest.raises(RunError, match=message):
            of(run)

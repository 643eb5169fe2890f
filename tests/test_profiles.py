"""Profiles: the paper's and DomainBed's settings, and what the user gives on top."""

import csv
from importlib.resources import files
from typing import Any

import pytest

from mecam.optim import OPTIMIZERS
from mecam.profiles import LR_RATIOS, OPTIMIZER_SETTINGS, V1, data_set
from mecam.recipe import Recipe, RecipeError

SETS = ("PACS", "VLCS", "OfficeHome", "TerraIncognita", "DomainNet")
PLAIN = ("adam", "adamw", "sgd", "yogi", "adabelief", "adahessian")


def rows(file: str) -> list[dict[str, str]]:
    with (files("mecam") / "published" / file).open(encoding="utf-8") as text:
        return list(csv.DictReader(text))


def paper(data: str, **parts: Any) -> Any:
    return Recipe(**{"data": data, "profile": "paper", **parts})


@pytest.mark.parametrize("row", rows("hyperparameters.csv"), ids=lambda row: row["dataset"])
def test_mecam_has_every_value_of_the_supplement(row: dict[str, str]) -> None:
    recipe = paper(row["dataset"], optimizer="mecam")
    entries = {name: getattr(recipe, name) for name in ("lr", "weight_decay", "dropout", "steps")}
    values = {**entries, **recipe.optimizer_settings}
    assert values == {name: float(value) for name, value in row.items() if name != "dataset"}
    assert (recipe.backbone, recipe.pretrained, recipe.freeze_bn) == (V1, True, True)
    assert (recipe.image_size, recipe.batch, recipe.evaluate_every) == (224, 32, 100)


@pytest.mark.parametrize("row", rows("rivals.csv"), ids=lambda row: f"{row['name']}-{row['dataset']}")
def test_rivals_have_every_value_of_their_authors(row: dict[str, str]) -> None:
    name, kind = row["name"].lower(), {"SAGM": "optimizer", "SWAD": "averaging"}.get(row["name"], "method")
    recipe = paper(row["dataset"], **{kind: name})
    settings = recipe.optimizer_settings | recipe.method_settings | recipe.averaging_settings
    stated = {key: float(value) for key, value in row.items() if value and key not in ("name", "dataset", "source")}
    assert {key: getattr(recipe, key, settings.get(key)) for key in stated} == stated


@pytest.mark.parametrize("data", SETS)
def test_other_optimizers_take_what_the_paper_took_from_sagm(data: str) -> None:
    sagm = paper(data, optimizer="sagm")
    for optimizer in (*PLAIN, "sam", "gam", "fad", "crsam", "fsam"):
        recipe = paper(data, optimizer=optimizer)
        assert (recipe.weight_decay, recipe.dropout, recipe.steps) == (sagm.weight_decay, 0.5, sagm.steps)
        expected = 1e-3 if optimizer == "sgd" else sagm.lr * LR_RATIOS.get(optimizer, 1.0)
        assert recipe.lr == pytest.approx(expected, rel=1e-9)
    assert paper(data, optimizer="sam").optimizer_settings == {"rho": 0.05}
    assert paper(data, optimizer="sgd").optimizer_settings == {"momentum": 0.9}
    under_sgd = paper(data, optimizer="sam", base="sgd")
    assert (under_sgd.lr, under_sgd.optimizer_settings) == (1e-3, {"rho": 0.05, "momentum": 0.9})


def test_a_combination_with_mecam_has_mecams_settings() -> None:
    alone = paper("VLCS", optimizer="mecam")
    for parts in ({"method": "coral"}, {"method": "miro"}, {"averaging": "swad"}):
        recipe = paper("VLCS", optimizer="mecam", **parts)
        assert (recipe.lr, recipe.weight_decay, recipe.dropout) == (alone.lr, alone.weight_decay, alone.dropout)
        assert recipe.optimizer_settings == alone.optimizer_settings
    assert paper("VLCS", optimizer="mecam", method="miro").method_settings == {"ld": 0.01}


@pytest.mark.parametrize(
    ("data", "steps", "evaluate_every"), [("shapes", 5000, 300), ("lab/scans", 5000, 300), ("DomainNet", 15000, 1000)]
)
def test_domainbed_is_for_any_data(data: str, steps: int, evaluate_every: int) -> None:
    recipe = Recipe(data=data, profile="domainbed", method="irm")
    assert (recipe.lr, recipe.weight_decay, recipe.dropout) == (5e-5, 0.0, 0.0)
    assert (recipe.steps, recipe.evaluate_every, recipe.batch) == (steps, evaluate_every, 32)
    assert (recipe.backbone, recipe.freeze_bn, recipe.image_size) == (V1, True, 224)
    assert recipe.method_settings == {}
    assert Recipe(data=data, profile="domainbed", optimizer="sgd").lr == 1e-3
    assert Recipe(data=data, profile="domainbed", method="arm").batch == 8


def test_fish_is_plain_sgd() -> None:
    fish = Recipe(data="PACS", profile="domainbed", method="fish")
    assert (fish.optimizer, fish.lr, fish.weight_decay) == ("sgd", 0.5, 0.0)
    assert fish.optimizer_settings["momentum"] == 0.0
    assert Recipe(data="PACS", profile="domainbed", method="fish", optimizer="mecam").lr == 5e-5


@pytest.mark.parametrize(
    ("profile", "data", "lr"), [("paper", "PACS", 3e-5), ("paper", "VLCS", 1e-5), ("domainbed", "VLCS", 5e-5)]
)
def test_the_inner_adam_of_fish_takes_the_profiles_learning_rate(profile: str, data: str, lr: float) -> None:
    fish = Recipe(data=data, profile=profile, method="fish")
    assert (fish.lr, fish.method_settings["inner_lr"]) == (0.5, lr)


def test_what_is_given_wins_and_tables_merge() -> None:
    given = {"lr": 1e-4, "steps": 7, "optimizer_settings": {"rho": 0.3}, "dropout": 0.0}
    recipe = paper("PACS", optimizer="mecam", **given)
    assert (recipe.lr, recipe.steps, recipe.dropout, recipe.weight_decay) == (1e-4, 7, 0.0, 1e-4)
    assert recipe.optimizer_settings == {"rho": 0.3, "alpha": 0.1, "beta": 0.1}


def test_another_backbone_brings_its_own_weights_and_size() -> None:
    lite = paper("PACS", backbone="lite0")
    assert (lite.pretrained, lite.freeze_bn, lite.image_size, lite.dropout) == (None, None, 224, 0.5)
    assert paper("PACS", backbone="resnet8").image_size == 32
    from_file = paper("PACS", weights="r50.pth")
    assert (from_file.backbone, from_file.pretrained, from_file.freeze_bn) == (V1, None, True)


def test_a_profile_is_not_a_part_of_the_run() -> None:
    by_name = paper("PACS", optimizer="mecam", target="photo")
    by_hand = Recipe(**{name: value for name, value in by_name.to_dict().items() if value is not None})
    assert by_hand.run_id == by_name.run_id
    assert "profile" not in by_name.to_dict()


@pytest.mark.parametrize(
    ("data", "name"),
    [
        ("PACS", "PACS"),
        ("/data/PACS", "PACS"),
        ("/data/office_home/", "OfficeHome"),
        ("terra-incognita", "TerraIncognita"),
        ("PACS/photo", None),
        ("shapes", None),
        (".", None),
    ],
)
def test_data_is_recognised_by_its_name(data: str, name: str | None) -> None:
    assert data_set(data) == name


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"profile": "paper"}, "no settings for shapes; it has them for PACS, .* Choose one .* or profile=domainbed"),
        ({"profile": "paper", "data": "my/scans"}, "no settings for my/scans"),
        ({"profile": "papr", "data": "PACS"}, "no profile 'papr'; did you mean paper"),
        ({"profile": 3, "data": "PACS"}, "profile=3 is a int; it must be a string"),
        ({"profile": ["paper"], "data": "PACS"}, r"profile=\['paper'\] is a list; it must be a string"),
        ({"profil": "paper"}, "no entry 'profil'; did you mean profile"),
    ],
)
def test_what_a_profile_cannot_do_is_refused(values: dict[str, Any], message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        Recipe(**values)


def test_the_defaults_kept_for_tables_are_those_of_the_optimizers() -> None:
    for name, settings in OPTIMIZER_SETTINGS.items():
        defaults = {key: value for key, value in OPTIMIZERS[name].defaults.items() if key not in ("lr", "weight_decay")}
        assert settings == defaults, name
    assert set(LR_RATIOS) == {name for name, entry in OPTIMIZERS.items() if entry.sharpness_aware is None}

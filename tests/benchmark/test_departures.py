"""Every departure from the settings behind a published cell is named, and nothing else."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from mecam.benchmark.paper import departures_of_run, published
from mecam.benchmark.plan import expand
from mecam.benchmark.plan import read as read_experiment
from mecam.benchmark.render import render
from mecam.benchmark.results import read
from mecam.benchmark.tables import rows
from mecam.recipe import Recipe
from tests.benchmark.folders import write_run


def departures(profile: str = "paper", **values: Any) -> list[str]:
    """How a run with these values on top of the profile differs from it."""
    return departures_of_run(Recipe(**{"data": "PACS", "target": "photo", "profile": profile, **values}), profile)


@pytest.mark.parametrize("data", ["PACS", "/x/VLCS", "office_home", "TerraIncognita", "DomainNet"])
@pytest.mark.parametrize(
    "parts",
    [
        {"optimizer": "adam"},
        {"optimizer": "sgd"},
        {"optimizer": "yogi"},
        {"optimizer": "gam"},
        {"optimizer": "mecam"},
        {"optimizer": "mecam", "averaging": "swad"},
        {"optimizer": "fad", "method": "coral"},
        {"method": "arm"},
        {"method": "fish"},
        {"method": "miro"},
    ],
)
def test_a_run_of_a_profile_does_not_differ_from_it(data: str, parts: dict[str, str]) -> None:
    for profile in ("paper", "domainbed"):
        assert departures(profile, data=data, **parts) == []


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"lr": 5e-5}, ["lr 5e-05, not 3e-05"]),
        ({"lr": 3.0000000000000004e-5}, []),
        ({"weight_decay": 0.0}, ["weight_decay 0, not 0.0001"]),
        ({"dropout": 0.1}, ["dropout 0.1, not 0.5"]),
        ({"steps": 300}, ["steps 300, not 5000"]),
        ({"evaluate_every": 50}, ["evaluate_every 50, not 100"]),
        ({"batch": 8}, ["batch 8, not 32"]),
        ({"method": "arm"}, []),
        ({"method": "arm", "batch": 32}, ["batch 32, not 8"]),
        ({"augment": False}, ["augment none, not protocol"]),
        ({"sources": "art_painting,cartoon"}, ["sources art_painting,cartoon, not the default"]),
        ({"patience": 5}, ["patience 5, not 0"]),
        ({"resize": "crop"}, ["resize crop, not squash"]),
        ({"selection": "last"}, ["selection last, not validation"]),
        ({"lr_schedule": "cosine"}, ["lr_schedule cosine, not constant"]),
        ({"optimizer_settings": {"betas": [0.5, 0.9]}}, ["betas [0.5, 0.9], not the default"]),
        ({"optimizer": "sam", "optimizer_settings": {"rho": 0.1}}, ["rho 0.1, not 0.05"]),
        ({"optimizer": "sagm", "optimizer_settings": {"alpha": 5e-4}}, ["alpha 0.0005, not 0.001"]),
        ({"optimizer": "mecam", "optimizer_settings": {"beta": 0.2}}, ["beta 0.2, not 0.1"]),
        ({"optimizer": "mecam", "base": "adamw"}, ["base adamw, not adam"]),
        ({"base": "adamw"}, []),
        ({"optimizer": "mecam", "virtual": "none"}, ["virtual none, not mixstyle"]),
        ({"virtual": "none"}, []),
        ({"optimizer": "mecam", "virtual_settings": {"p": 0.5}}, ["p 0.5, not 1"]),
        ({"optimizer": "mecam", "virtual_settings": {"p": 1.0}}, []),
        ({"method": "coral", "method_settings": {"gamma": 2.0}}, ["gamma 2, not 1"]),
        ({"method": "coral", "method_settings": {"gamma": 1.0}}, []),
        ({"method": "miro", "method_settings": {"ld": 0.1}}, ["ld 0.1, not 0.01"]),
        ({"averaging": "swad", "averaging_settings": {"tolerance": 0.2}}, ["tolerance 0.2, not 0.3"]),
        ({"data": "VLCS", "averaging": "swad", "averaging_settings": {"tolerance": 0.3}}, ["tolerance 0.3, not 0.2"]),
        ({"method": "fish", "optimizer": "adam"}, ["optimizer adam, not sgd"]),
        ({"image_size": 112}, ["image_size 112, not 224"]),
        ({"freeze_bn": False}, ["batch norm not frozen"]),
        ({"pretrained": False}, ["no ImageNet weights"]),
        ({"backbone": "resnet50", "weights": "r50.pth"}, []),
        ({"backbone": "resnet50v1", "weights": "r50.safetensors"}, ["backbone resnet50v1, not resnet50"]),
        ({"backbone": "resnet50"}, ["no ImageNet weights", "batch norm not frozen"]),
        ({"backbone": "lite0"}, ["backbone lite0, not resnet50"]),
        ({"precision": "fp32"}, []),
    ],
)
def test_a_departure_is_named(values: dict[str, Any], said: list[str]) -> None:
    assert departures(**values) == said


def test_what_is_left_to_an_optimizers_default_counts_as_that() -> None:
    by_hand = {"data": "OfficeHome", "target": "Art", "optimizer": "mecam", "profile": "domainbed"}
    found = departures_of_run(Recipe(**by_hand), "paper")
    assert {"rho 0.1, not 0.2", "alpha 0.1, not 0.2"} <= set(found)
    assert not any(words.startswith("beta") for words in found)


def test_every_published_cell_has_a_profile() -> None:
    profiles = {(cell.table, cell.algorithm): cell.profile for cell in published()}
    paper = {algorithm for (table, algorithm), profile in profiles.items() if profile == "paper" and table == "methods"}
    assert paper == {"MeCAM", "MIRO", "mDSDI"}
    assert {profile for (table, _), profile in profiles.items() if table != "methods"} == {"paper"}


def test_rows_of_another_setting_are_marked_and_the_legend_says_which(tmp_path: Path) -> None:
    paper = {"profile": "paper", "target": "photo"}
    write_run(tmp_path, 0.8, data="/x/PACS", optimizer="sam", **paper)
    write_run(tmp_path, 0.8, data="/x/PACS", optimizer="mecam", image_size=112, **paper)
    write_run(tmp_path, 0.8, data="/x/PACS", optimizer="fad", image_size=112, lr=1e-3, **paper)
    write_run(tmp_path, 0.8, data="/x/PACS", optimizer="looksam", image_size=112, **paper)  # nothing was published
    table = rows(read(tmp_path)[0])
    text = render(table, "terminal", compare="paper")
    legend = "†: differs from the published setting: lr 0.001, not 3e-05 (fad); image_size 112, not 224."
    assert legend in text
    marked = {line.split("  ")[0] for line in text.splitlines() if line.startswith(("sam", "mecam", "fad", "look"))}
    assert marked == {"sam", "mecam †", "fad †", "looksam"}
    assert r"mecam $\dagger$ &" in render(table, "latex", compare="paper")
    assert "†" not in render(table, "terminal")


def test_a_searched_setting_is_named_once(tmp_path: Path) -> None:
    for place, lr in enumerate((3e-5, 1e-4, 2e-4)):
        target = ("photo", "sketch", "cartoon")[place]
        write_run(tmp_path, 0.8, data="PACS", target=target, optimizer="sam", profile="paper", lr=lr, steps=9)
    text = render(rows(read(tmp_path)[0], select="target"), "terminal", compare="paper")
    assert "setting: lr searched, not 3e-05; steps 9, not 5000." in text


def test_a_data_set_stands_for_all_of_its_rows_in_the_legend(tmp_path: Path) -> None:
    for optimizer in ("sam", "mecam"):
        write_run(tmp_path, 0.8, data="/x/PACS", target="photo", optimizer=optimizer, profile="paper", steps=9)
        write_run(tmp_path, 0.8, data="/x/DomainNet", target="real", optimizer=optimizer, profile="paper", steps=9)
    text = render(rows(read(tmp_path)[0]), "terminal", compare="paper")
    assert "setting: steps 9, not 15000 (DomainNet); steps 9, not 5000 (PACS)." in text


def test_adam_matches_one_published_row_and_the_other_is_marked(tmp_path: Path) -> None:
    """ERM of Table 2 is DomainBed's, Adam of Table 3 has weight decay and dropout."""
    write_run(tmp_path, 0.8, data="/x/PACS", target="photo", optimizer="adam", profile="paper")
    text = render(rows(read(tmp_path)[0]), "terminal", compare="paper")
    assert any(line.startswith("adam  ") for line in text.splitlines())
    assert "paper: ERM (PACS, inherited) †" in text
    assert "paper: Adam (PACS2, inherited)  " in text
    assert "† on a published row: its settings differ from ours: lr 3e-05, not 5e-05; " in text


def test_the_common_case_does_not_import_torch(tmp_path: Path) -> None:
    write_run(tmp_path, 0.8, data="/x/PACS", target="photo", optimizer="mecam")
    code = f"""import sys; from pathlib import Path; from mecam.benchmark.render import table
print(table(Path({str(tmp_path)!r}), compare="paper")[0]); assert "torch" not in sys.modules"""
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert "backbone lite0, not resnet50" in said
    assert "rho" not in said, "MeCAM's defaults are the paper's on PACS"


def test_the_paper_on_resnet50v1_differs_in_the_network_alone() -> None:
    file = Path(__file__).parents[2] / "recipes" / "pacs_resnet50.toml"
    runs = expand(read_experiment(file).blocks, lambda _values: ("photo",))
    first = [recipe for recipe in runs if recipe.seed == 0][:4]
    assert [recipe.optimizer for recipe in first] == ["adam", "mecam", "sam", "sagm"]
    assert {tuple(departures_of_run(recipe, "paper")) for recipe in first} == {("backbone resnet50v1, not resnet50",)}

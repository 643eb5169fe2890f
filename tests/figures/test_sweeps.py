"""Which rows make a grid, and which row of SAM it is measured against."""

from pathlib import Path

from mecam.benchmark.plan import expand, read
from mecam.benchmark.tables import Key
from mecam.figures.sweeps import sweeps
from mecam.recipe import Recipe


def row(optimizer: str, settings: dict[str, float], **values: object) -> tuple[Key, Recipe]:
    recipe = Recipe(**{"optimizer": optimizer, "optimizer_settings": settings, "target": "art", **values})
    variant = ", ".join(f"{name}={value}" for name, value in settings.items())
    return Key("shapes", "erm", optimizer, "none", variant), recipe


def test_a_grid_is_measured_against_sam_of_its_length_and_best_of_its_radius() -> None:
    grid = [
        row("mecam", {"rho": 0.2, "alpha": alpha, "beta": beta}, steps=100)
        for alpha in (0.1, 0.2)
        for beta in (0.1, 0.2)
    ]
    others = [row("sam", {"rho": 0.1}, steps=100), row("sam", {"rho": 0.2}, steps=50)]
    [found] = sweeps([*others, *grid], ("alpha", "beta"))
    assert [entry.row for entry in found.rows] == [2, 3, 4, 5]
    assert found.reference == 0
    [found] = sweeps([*others, *grid, row("sam", {"rho": 0.2}, steps=100)], ("alpha", "beta"))
    assert found.reference == 6


def test_the_grid_of_the_recipe_is_measured_against_its_sam() -> None:
    file = Path(__file__).parents[2] / "recipes" / "figure_alpha_beta.toml"
    runs = [recipe for recipe in expand(read(file).blocks, {"PACS": ("photo",)}) if recipe.seed == 0]
    keys = [Key("PACS", "erm", recipe.optimizer, "none", str(recipe.optimizer_settings)) for recipe in runs]
    [found] = sweeps(list(zip(keys, runs, strict=True)), ("alpha", "beta"))
    assert found.reference is not None
    assert (runs[found.reference].optimizer, len(found.rows)) == ("sam", 16)


def test_a_sweep_of_rho_has_no_reference() -> None:
    found = sweeps([row(name, {"rho": rho}) for name in ("sam", "mecam") for rho in (0.1, 0.2)], ("rho",))
    assert [sweep.reference for sweep in found] == [None, None]


def test_runs_at_the_default_are_points_of_a_sweep() -> None:
    [found] = sweeps([row("mecam", {}), row("mecam", {"rho": 0.5}), row("mecam", {"rho": 0.5}, lr=1.0)], ("rho",))
    assert [(entry.row, entry.values) for entry in found.rows] == [(0, [0.1]), (1, [0.5])]

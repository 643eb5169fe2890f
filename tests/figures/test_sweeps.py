"""Which rows make a grid, and which row of SAM it is measured against."""

from pathlib import Path

from mecam.benchmark.plan import expand, read
from mecam.benchmark.results import Result
from mecam.benchmark.tables import Key, Row
from mecam.figures.sweeps import sweeps
from mecam.recipe import Recipe


def row(optimizer: str, settings: dict[str, float], **values: object) -> Row:
    return row_of(Recipe(**{"optimizer": optimizer, "optimizer_settings": settings, "target": "art", **values}))


def row_of(recipe: Recipe) -> Row:
    variant = ", ".join(f"{name}={value}" for name, value in recipe.optimizer_settings.items())
    key = Key(recipe.data, "erm", recipe.optimizer, "none", variant)
    return Row(key, {}, {}, [Result(Path(recipe.run_id), recipe, None, None)])


def test_a_grid_is_measured_against_sam_of_its_length_and_best_of_its_radius() -> None:
    grid = [
        row("mecam", {"rho": 0.2, "alpha": alpha, "beta": beta}, steps=100)
        for alpha in (0.1, 0.2)
        for beta in (0.1, 0.2)
    ]
    others = [row("sam", {"rho": 0.1}, steps=100), row("sam", {"rho": 0.2}, steps=50)]
    [sweep] = sweeps([*others, *grid], ("alpha", "beta"))
    assert [entry.row for entry in sweep.rows] == [2, 3, 4, 5]
    assert sweep.reference == 0
    [sweep] = sweeps([*others, *grid, row("sam", {"rho": 0.2}, steps=100)], ("alpha", "beta"))
    assert sweep.reference == 6


def test_the_grid_of_the_recipe_is_measured_against_its_sam() -> None:
    file = Path(__file__).parents[2] / "recipes" / "figure_alpha_beta.toml"
    runs = [recipe for recipe in expand(read(file).blocks, lambda _values: ("photo",)) if recipe.seed == 0]
    [sweep] = sweeps(list(map(row_of, runs)), ("alpha", "beta"))
    assert sweep.reference is not None
    assert (runs[sweep.reference].optimizer, len(sweep.rows)) == ("sam", 16)


def test_a_sweep_of_rho_has_no_reference() -> None:
    every = sweeps([row(name, {"rho": rho}) for name in ("sam", "mecam") for rho in (0.1, 0.2)], ("rho",))
    assert [sweep.reference for sweep in every] == [None, None]


def test_runs_at_the_default_are_points_of_a_sweep() -> None:
    [sweep] = sweeps([row("mecam", {}), row("mecam", {"rho": 0.5}), row("mecam", {"rho": 0.5}, lr=1.0)], ("rho",))
    assert [(entry.row, entry.values) for entry in sweep.rows] == [(0, [0.1]), (1, [0.5])]

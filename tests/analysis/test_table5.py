"""Table 5: means over runs against NumPy, stars only where rows can be ranked."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from mecam.analysis.curvature import Curvature, curvature, exact
from mecam.analysis.table5 import Measured, Row, grouped, incomparable, named, notes, single, spread, table
from mecam.benchmark.results import Result
from mecam.recipe import Recipe
from tests.analysis.test_curvature import objective, quadratic

FLAT, STEEP = quadratic(torch.eye(2), torch.ones(2)), quadratic(4 * torch.eye(2), torch.ones(2) / 4)


def result(name: str = "", **values: object) -> Result:
    recipe = Recipe(**{"target": "art", **values})
    return Result(Path(name or recipe.run_id), recipe, 50.0, 50.0, "fingerprint")


def measured(seed: int = 0, curve: Curvature | None = None, **values: object) -> Measured:
    return Measured(result(seed=seed, **values), curve or curvature(objective(seed), (0.1, 0.2)))


def test_the_table_has_every_run_and_a_star_at_the_smallest_metric() -> None:
    rows = {"flat": Row([curvature(FLAT, (0.1, 0.2))]), "steep": Row([curvature(STEEP, (0.1, 0.2))], [exact(STEEP)])}
    text = table(rows)
    facts, metric, *_ = text.split("\n\n")
    _, flat_facts, steep_facts = facts.splitlines()
    assert flat_facts.split() == ["flat", "1", "1.41", "–", "–", "quadratic", "1", "float64"]
    assert steep_facts.split() == ["steep", "0.25", "1.41", "4", "1.33", "quadratic", "1", "float64"]
    _, header, *body = metric.splitlines()
    assert header.split() == ["rho=0.1", "rho=0.2"]
    assert [line.split() for line in body] == [["flat", "3.33e-03", "*", "0.0133", "*"], ["steep", "0.0133", "0.0533"]]
    assert "ASAM" not in text
    assert "*" not in table(rows, stars=False)
    alone = table({"flat": Row([curvature(FLAT, sharpness=True)])})
    assert "ASAM" in alone
    assert "*" not in alone


def test_the_table_of_runs_measured_at_different_radii() -> None:
    rows = {"a": Row([curvature(objective(), (0.1,))]), "b": Row([curvature(objective(1), (0.2,))])}
    assert [line.split()[0] for line in table(rows).split("\n\n")[1].splitlines()[2:]] == ["a", "b"]
    assert "–" in table(rows)
    assert incomparable(rows) == "radii"


def test_cells_are_means_and_standard_deviations_over_the_runs_of_a_row() -> None:
    rows = grouped([measured(seed) for seed in range(3)] + [measured(0, optimizer="mecam")])
    assert {name: len(row.runs) for name, row in rows.items()} == {"adam": 3, "mecam": 1}
    values = [run.at[1].curvature for run in rows["adam"].runs]
    cell = rows["adam"].spread("curvature", 0.2)
    assert (cell.mean, cell.std) == (pytest.approx(np.mean(values)), pytest.approx(np.std(values)))
    assert str(cell) in table(rows)
    assert rows["mecam"].spread("curvature", 0.2).std is None
    written = rows["adam"].to_dict()
    assert written["loss"]["mean"] == pytest.approx(np.mean([run.loss for run in rows["adam"].runs]))
    assert (written["runs"], written["seeds"], written["targets"]) == (3, [0, 1, 2], ["art"])
    assert str(spread([1.0, np.inf])) == "not finite"


def test_a_run_that_is_not_finite_makes_no_mean_and_gets_no_star() -> None:
    (at,) = curvature(FLAT, (0.1,)).at
    finite = curvature(FLAT, (0.1,))
    broken = replace(finite, at=(replace(at, curvature=np.nan),))
    rows = {"a": Row([finite, broken]), "b": Row([finite, finite])}
    a, b = table(rows).split("\n\n")[1].splitlines()[2:]
    assert a.split() == ["a", "not", "finite"]
    assert b.split()[-1] == "*"
    assert rows["a"].to_dict()["curvature"]["mean"] == [None]


@pytest.mark.parametrize(
    ("values", "why"),
    [
        ({"backbone": "resnet18"}, "backbone"),
        ({"seed": 1}, "targets or seeds"),
        ({"target": "photo"}, "targets or seeds"),
        ({"image_size": 16}, "image size"),
        ({"holdout": 0.1}, "holdout"),
        ({"sources": "photo,sketch"}, "sources"),
    ],
)
def test_rows_of_other_settings_get_no_star(values: dict[str, object], why: str) -> None:
    alike = [measured(), measured(optimizer="sam")]
    assert incomparable(grouped(alike)) is None
    curve = curvature(objective(), (0.1, 0.2))
    other = Measured(result(**{"optimizer": "mecam", **values}), curve)
    assert incomparable(grouped([*alike, other])) == why
    assert f"No row has a star: the rows differ in {why}." in notes(grouped([*alike, other]))


def test_other_data_splits_or_images_get_no_star() -> None:
    one, curve = measured(), curvature(objective(), (0.1, 0.2))
    for change, why in (({"data": "target"}, "split"), ({"samples": 3}, "number of images")):
        other = measured(curve=replace(curve, **change), optimizer="sam")  # type: ignore[arg-type]
        assert incomparable(grouped([one, other])) == why
    changed = measured(optimizer="sam")
    assert incomparable(grouped([one, replace(changed, result=replace(changed.result, fingerprint="x"))])) == "data"


def test_published_rows_stand_below_the_optimizer_they_belong_to() -> None:
    curve = curvature(objective(), (0.05, 0.3))
    rows = grouped(
        [measured(0, curve, optimizer=name) for name in ("adam", "crsam", "mecam", "gsam")]
        + [measured(0, curve, optimizer="mecam", method="coral")],
        compare=True,
    )
    assert {name: list(row.published) for name, row in rows.items()} == {
        "adam": ["ERM"], "crsam": ["CRSAM"], "mecam": ["MeCAM"], "gsam": [], "coral + mecam": [],
    }  # fmt: skip
    lines = [line.split() for line in table(rows).splitlines() if "paper:" in line]
    assert lines == [
        ["paper:", "ERM", "0.086", "–"],
        ["paper:", "CRSAM", "0.013", "–"],
        ["paper:", "MeCAM", "7.50e-03", "–"],
    ]
    assert any("ResNet-50 on PACS" in note and "not state the split" in note for note in notes(rows))
    assert not any("PACS" in note for note in notes(grouped([measured(0, curve)])))


def test_names_hold_what_runs_differ_in() -> None:
    assert list(named([result()])) == ["adam"]
    assert list(named([result(), result(optimizer="sam")])) == ["adam", "sam"]
    several = [result(seed=seed, target=target) for seed in (0, 1) for target in ("art", "photo")]
    assert list(named(several)) == [
        "adam, art, seed 0",
        "adam, art, seed 1",
        "adam, photo, seed 0",
        "adam, photo, seed 1",
    ]
    assert list(named([result(), result(target=None)])) == ["adam, all", "adam, art"]
    copies = [result("a/run"), result("b/run")]
    assert list(named(copies)) == ["adam", "adam (b/run)"]
    assert list(named([result(data="x/PACS"), result(data="VLCS")])) == ["PACS: adam", "VLCS: adam"]
    assert list(single([measured(), measured(1)])) == ["adam, seed 0", "adam, seed 1"]


def test_a_table_of_nothing() -> None:
    with pytest.raises(ValueError, match="there is no run"):
        table({})

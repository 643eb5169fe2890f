"""The published cells are all there and stand beside the right rows."""

from pathlib import Path

import pytest

from mecam.benchmark.paper import beside, departures, published
from mecam.benchmark.render import render
from mecam.benchmark.results import read
from mecam.benchmark.tables import AVERAGE, rows
from mecam.recipe import make
from tests.benchmark.folders import write_run


def test_all_cells() -> None:
    cells = published()
    assert len(cells) == 1143
    assert sum(cell.target == AVERAGE for cell in cells) == 461


@pytest.mark.parametrize(
    ("values", "algorithms"),
    [
        ({"optimizer": "adam"}, {"ERM", "Adam"}),
        ({"optimizer": "mecam"}, {"MeCAM"}),
        ({"optimizer": "yogi"}, {"YOGI"}),
        ({"method": "andmask", "optimizer": "adam"}, {"AND-mask"}),
        ({"method": "coral", "optimizer": "mecam"}, {"MeCAM + CORAL"}),
        ({"optimizer": "adamw", "averaging": "swad"}, {"AdamW + SWAD"}),
    ],
)
def test_rows_find_their_algorithms(values: dict[str, str], algorithms: set[str], tmp_path: Path) -> None:
    write_run(tmp_path, 0.8, data="/x/PACS", target="photo", **values)
    row = rows(read(tmp_path)[0])[0]
    assert {cell.algorithm for cell in beside(row, AVERAGE)} == algorithms
    assert all(cell.data == "PACS" for cell in beside(row, AVERAGE))


def test_both_tables_of_an_average_are_shown_with_their_labels(tmp_path: Path) -> None:
    write_run(tmp_path, 0.8, data="/x/PACS", target="photo", optimizer="mecam")
    text = render(rows(read(tmp_path)[0]), "terminal", compare="paper")
    for label in ("comparison_DG", "comparison_Opt", "PACS", "PACS2"):
        assert f"paper: MeCAM ({label}, " in text


def test_other_settings_are_named() -> None:
    assert departures(make({"data": "PACS", "backbone": "resnet50", "weights": "r50.pth"})) == []
    found = departures(make({"data": "PACS", "steps": 300}))
    assert "backbone lite0, not resnet50" in found
    assert "steps 300, not 5000" in found

"""The published cells are all there and stand beside the right rows."""

import csv
import io
import json
from pathlib import Path
from typing import Any

import pytest

from mecam.benchmark.paper import beside, published, settings_of
from mecam.benchmark.render import render
from mecam.benchmark.results import read
from mecam.benchmark.tables import AVERAGE, rows
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
        ({"method": "fish", "optimizer": "sgd"}, {"Fish"}),
        ({"method": "coral", "optimizer": "mecam"}, {"MeCAM + CORAL"}),
        ({"optimizer": "adamw", "averaging": "swad"}, {"AdamW + SWAD"}),
        ({"method": "fish"}, {"Fish"}),
        ({"method": "fish", "optimizer": "adam"}, set()),  # another method
        ({"method": "fish", "optimizer": "sgd", "optimizer_settings": {"momentum": 0.9}}, set()),
    ],
)
def test_rows_find_their_algorithms(values: dict[str, Any], algorithms: set[str], tmp_path: Path) -> None:
    write_run(tmp_path, 0.8, data="/x/PACS", target="photo", **values)
    row = rows(read(tmp_path)[0])[0]
    assert {cell.algorithm for cell in beside(row.key, AVERAGE)} == algorithms
    assert all(cell.data == "PACS" for cell in beside(row.key, AVERAGE))


def test_both_tables_of_an_average_are_shown_with_their_labels(tmp_path: Path) -> None:
    write_run(tmp_path, 0.8, data="/x/PACS", target="photo", optimizer="mecam")
    text = render(rows(read(tmp_path)[0]), "terminal", compare="paper")
    for label in ("comparison_DG", "comparison_Opt", "PACS", "PACS2"):
        assert f"paper: MeCAM ({label}, " in text


def test_published_cells_are_data_too(tmp_path: Path) -> None:
    write_run(tmp_path, 0.8, data="/x/PACS", target="photo", optimizer="adam", profile="paper")
    table = rows(read(tmp_path)[0])
    photo, average = json.loads(render(table, "json", compare="paper"))
    assert photo["differs"] == []
    assert [bool(p["differs"]) for p in photo["published"]] == [True, False], "ERM is DomainBed's, Adam the paper's"
    assert [(p["from"], p["mean"]) for p in photo["published"]] == [
        (f"{c.algorithm} ({c.label}, {c.source})", c.mean) for c in beside(table[0].key, "photo")
    ]
    assert {p["from"].partition(" ")[0] for p in average["published"]} == {"ERM", "Adam"}
    lines = list(csv.DictReader(io.StringIO(render(table, "csv", compare="paper"))))
    assert lines[0]["from"] == "ours"
    assert [float(line["mean"]) for line in lines[1:] if line["target"] == "photo"] == [
        p["mean"] for p in photo["published"]
    ]


def test_the_average_over_data_sets_stands_beside_the_published_one(tmp_path: Path) -> None:
    for name in ("PACS", "VLCS"):
        write_run(tmp_path, 0.8, data=f"/x/{name}", optimizer="mecam")
    across = render(rows(read(tmp_path)[0]), "terminal", compare="paper").split("all data sets\n")[1]
    [line] = [line for line in across.splitlines() if "(comparison_Opt, paper)" in line]
    assert line.split()[-1] == "66.6"


def test_mecams_published_settings_are_known_by_data_set() -> None:
    assert settings_of("OfficeHome") == {"rho": 0.2, "alpha": 0.2, "beta": 0.1}
    assert settings_of("somewhere/office_home") == settings_of("OfficeHome")
    assert settings_of("shapes") == {}

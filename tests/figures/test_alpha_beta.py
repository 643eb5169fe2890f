"""Supplementary Figure I(b): the grid, and SAM as its reference."""

from pathlib import Path

import pytest

from mecam.benchmark import results
from mecam.benchmark.paper import TARGETS
from mecam.figures import alpha_beta
from mecam.figures.points import Missing
from tests.benchmark.folders import write_run


def found(out: Path) -> alpha_beta.Grid:
    return alpha_beta.values(results.read(out)[0])


def write_grid(out: Path, targets: list[str], data: str = "PACS") -> None:
    for target in targets:
        for alpha in (0.1, 0.2):
            for beta in (0.05, 0.1):
                settings = {"rho": 0.1, "alpha": alpha, "beta": beta}
                write_run(
                    out, 0.5 + alpha + beta, data=data, target=target, optimizer="mecam", optimizer_settings=settings
                )
        write_run(out, 0.68, data=data, target=target, optimizer="sam", optimizer_settings={"rho": 0.1})


def test_every_cell_has_its_accuracy_and_sam_is_the_reference(tmp_path: Path) -> None:
    write_grid(tmp_path, ["sketch"])
    figure = found(tmp_path)
    assert {place: point.mean for place, point in figure.cells.items()} == pytest.approx(
        {(0.1, 0.05): 65, (0.1, 0.1): 70, (0.2, 0.05): 75, (0.2, 0.1): 80}
    )
    assert figure.sam is not None
    assert figure.sam.mean == pytest.approx(68)
    assert (figure.name, figure.targets, figure.published) == ("MeCAM", "target sketch", None)


def test_the_published_average_is_named_where_all_targets_were_run(tmp_path: Path) -> None:
    write_grid(tmp_path, list(TARGETS["PACS"].values()))
    figure = found(tmp_path)
    assert figure.published == 88.3
    assert figure.departures.startswith("ours: ")
    assert "backbone lite0, not resnet50" in figure.departures
    assert "alpha" not in figure.departures
    assert alpha_beta._notes(figure)[-1] == figure.departures


def test_without_a_grid_there_is_no_figure(tmp_path: Path) -> None:
    write_run(tmp_path, 0.5, optimizer="mecam")
    with pytest.raises(Missing, match="differ in alpha and beta alone"):
        found(tmp_path)

"""Supplementary Figure I: (a) a line per optimizer over shared targets; (b) a grid, and SAM as its reference."""

from pathlib import Path

import pytest

from mecam.benchmark import results
from mecam.benchmark.paper import TARGETS
from mecam.figures.points import Missing, Point
from mecam.figures.sensitivity import Grid, Rho, alpha_beta_grid, rho_lines
from tests.benchmark.folders import write_run


def lines(out: Path) -> Rho:
    return rho_lines(results.read(out)[0])


def grid(out: Path) -> Grid:
    return alpha_beta_grid(results.read(out)[0])


def sweep(
    out: Path, optimizer: str, accuracies: dict[float, float], target: str = "sketch", data: str = "PACS"
) -> None:
    for radius, accuracy in accuracies.items():
        settings = {"rho": radius}
        write_run(out, accuracy, data=data, target=target, optimizer=optimizer, optimizer_settings=settings)


def test_points_are_compared_over_the_targets_that_all_have(tmp_path: Path) -> None:
    sweep(tmp_path, "sam", {0.05: 0.5, 0.1: 0.6})
    sweep(tmp_path, "mecam", {0.0: 0.1, 0.1: 0.7, 0.05: 0.8})  # 0 has no place on a logarithmic axis
    sweep(tmp_path, "mecam", {0.1: 0.9}, target="photo")
    figure = lines(tmp_path)
    assert (figure.data, figure.targets) == ("PACS", "target sketch")
    assert {line.name: [(point.x, point.mean) for point in line.points] for line in figure.lines} == {
        "SAM": [(0.05, 50.0), (0.1, 60.0)],
        "MeCAM": [(0.05, 80.0), (0.1, 70.0)],
    }
    assert not any(line.published for line in figure.lines)  # that is an average of four targets


def test_the_published_average_stands_at_the_papers_rho(tmp_path: Path) -> None:
    for target in TARGETS["PACS"].values():
        sweep(tmp_path, "mecam", {0.1: 0.8, 0.2: 0.7}, target)
        sweep(tmp_path, "sam", {0.1: 0.8, 0.2: 0.7}, target)
    figure = lines(tmp_path)
    assert figure.targets == "average of 4 targets"
    assert {line.name: line.published for line in figure.lines} == {"SAM": (), "MeCAM": (Point(0.1, 88.3),)}
    assert figure.note.startswith("ours: ")


def test_the_published_settings_at_other_radii_are_no_departure(tmp_path: Path) -> None:
    for target in TARGETS["PACS"].values():
        for radius in (0.01, 0.1):
            settings = {"rho": radius}
            write_run(
                tmp_path, 0.8, data="PACS", target=target, optimizer="mecam", profile="paper",
                optimizer_settings=settings,
            )  # fmt: skip
    figure = lines(tmp_path)
    assert figure.lines[0].published
    assert figure.note == ""


def test_without_a_sweep_there_is_no_figure(tmp_path: Path) -> None:
    sweep(tmp_path, "sam", {0.05: 0.5})
    with pytest.raises(Missing, match="differ in rho alone"):
        lines(tmp_path)


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
    figure = grid(tmp_path)
    assert {place: point.mean for place, point in figure.cells.items()} == pytest.approx(
        {(0.1, 0.05): 65, (0.1, 0.1): 70, (0.2, 0.05): 75, (0.2, 0.1): 80}
    )
    assert figure.sam is not None
    assert figure.sam.mean == pytest.approx(68)
    assert (figure.name, figure.targets) == ("MeCAM", "target sketch")
    assert figure.note == "SAM: 68.0; 3 of 4 cells are above SAM"


def test_the_published_average_is_named_where_all_targets_were_run(tmp_path: Path) -> None:
    write_grid(tmp_path, list(TARGETS["PACS"].values()))
    figure = grid(tmp_path)
    published, _, departures = figure.note.partition("; ours: ")
    assert published.endswith("; published at alpha 0.1, beta 0.1: 88.3")
    assert "backbone lite0, not resnet50" in departures
    assert "alpha" not in departures


def test_without_a_grid_there_is_no_figure(tmp_path: Path) -> None:
    write_run(tmp_path, 0.5, optimizer="mecam")
    with pytest.raises(Missing, match="differ in alpha and beta alone"):
        grid(tmp_path)

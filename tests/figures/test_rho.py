"""Supplementary Figure I(a): one line per optimizer over the targets that all points have."""

from pathlib import Path

import pytest

from mecam.benchmark import results
from mecam.benchmark.paper import TARGETS
from mecam.figures import rho
from mecam.figures.points import Missing, Point
from tests.benchmark.folders import write_run


def found(out: Path) -> rho.Rho:
    return rho.values(results.read(out)[0])


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
    figure = found(tmp_path)
    assert (figure.data, figure.targets) == ("PACS", "target sketch")
    lines = {line.name: [(point.x, point.mean) for point in line.points] for line in figure.lines}
    assert lines == {"SAM": [(0.05, 50.0), (0.1, 60.0)], "MeCAM": [(0.05, 80.0), (0.1, 70.0)]}
    assert not any(line.published for line in figure.lines)  # that is an average of four targets


def test_the_published_average_stands_at_the_papers_rho(tmp_path: Path) -> None:
    for target in TARGETS["PACS"].values():
        sweep(tmp_path, "mecam", {0.1: 0.8, 0.2: 0.7}, target)
        sweep(tmp_path, "sam", {0.1: 0.8, 0.2: 0.7}, target)
    figure = found(tmp_path)
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
    figure = found(tmp_path)
    assert figure.lines[0].published
    assert figure.note == ""


def test_without_a_sweep_there_is_no_figure(tmp_path: Path) -> None:
    sweep(tmp_path, "sam", {0.05: 0.5})
    with pytest.raises(Missing, match="differ in rho alone"):
        found(tmp_path)

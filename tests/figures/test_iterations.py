"""Figure 3: runs of several lengths, or what each run would have selected on the way."""

from pathlib import Path
from typing import Any

import pytest

from mecam.benchmark import results
from mecam.figures import iterations
from mecam.figures.points import Missing, Point
from mecam.recipe import Recipe
from mecam.splits import summarize
from tests.benchmark.folders import write_run
from tests.report import runs


def drawn(out: Path) -> iterations.Iterations:
    return iterations.values(results.read(out)[0])


def test_runs_of_several_lengths_make_a_line_with_the_spread_over_seeds(tmp_path: Path) -> None:
    for target in ("art_painting", "sketch"):
        for steps, accuracy in ((1000, 0.6), (5000, 0.7)):
            for seed in (0, 1):
                common: dict[str, Any] = {"data": "PACS", "target": target, "seed": seed}
                write_run(tmp_path, accuracy + seed / 50, optimizer="mecam", steps=steps, **common)
                if steps == 1000:  # one length: no line
                    write_run(tmp_path, 0.5, optimizer="adam", **common)
    figure = drawn(tmp_path)
    assert (figure.data, list(figure.panels)) == ("PACS", ["art_painting", "sketch"])
    assert iterations.LENGTHS in figure.note
    [line] = figure.panels["sketch"]
    assert (line.name, [(point.x, point.mean) for point in line.points]) == (
        "MeCAM",
        [(1000, pytest.approx(61)), (5000, pytest.approx(71))],
    )
    assert line.points[0].spread == pytest.approx(1 / 2**0.5)
    assert line.published == (Point(5000, 83.5),)  # the supplement's table of PACS


def test_runs_that_differ_in_more_than_their_length_make_no_line(tmp_path: Path) -> None:
    for steps in (100, 200):
        write_run(tmp_path, 0.5, optimizer="sam", steps=steps, evaluate_every=steps)
    with pytest.raises(Missing):
        drawn(tmp_path)


def test_published_values_stand_where_we_have_runs_as_long(tmp_path: Path) -> None:
    for steps in (100, 200):
        write_run(tmp_path, 0.5, data="PACS", target="sketch", optimizer="mecam", steps=steps)
    assert drawn(tmp_path).panels["sketch"][0].published == ()


def record(step: int, validation: float, target: float) -> dict[str, Any]:
    splits = {
        "photo out": validation - 0.1,
        "cartoon out": validation + 0.1,
        "sketch in": target,
        "sketch out": 1 - target,
    }
    return {"step": step, "splits": {name: {"accuracy": share} for name, share in splits.items()}}


@pytest.mark.parametrize(
    ("selection", "expected"),
    [("validation", [60, 60, 60, 30]), ("last", [60, 90, 20, 30]), ("oracle", [60, 60, 20, 20])],
)
def test_the_weights_selected_so_far(selection: str, expected: list[float]) -> None:
    records = [
        record(0, 0.1, 0.7),
        record(10, 0.5, 0.6),
        record(20, 0.4, 0.9),
        record(30, 0.5, 0.2),
        record(40, 0.6, 0.3),
    ]
    evaluations = [(one["step"], summarize(one["splits"], "sketch")) for one in records]
    selected = iterations.selected(evaluations, Recipe(target="sketch", selection=selection))
    assert [step for step, _ in selected] == [10, 20, 30, 40]
    assert [accuracy for _, accuracy in selected] == pytest.approx(expected)


def test_without_lengths_the_records_of_each_run_are_drawn(tmp_path: Path) -> None:
    domains = ["art", "photo", "sketch"]
    for seed, accuracy in ((0, 0.6), (1, 0.9)):
        runs.write_run(tmp_path, accuracy, domains=domains, target="art", optimizer="sam", seed=seed)
    runs.write_run(tmp_path, 0.5, domains=domains, target="art", averaging="swad")  # whose weights are not recorded
    damaged = runs.write_run(tmp_path, 0.5, domains=domains, target="photo", optimizer="sam")
    damaged.records_file.write_text("{}\n")
    figure = drawn(tmp_path)
    assert iterations.PREFIXES in figure.note
    assert list(figure.panels) == ["art"]
    [line] = figure.panels["art"]
    assert [(point.x, point.mean) for point in line.points] == [(10, pytest.approx(50)), (20, pytest.approx(75))]


def test_no_more_lines_than_can_be_told_apart_the_papers_first(tmp_path: Path) -> None:
    names = ["asam", "gsam", "esam", "wsam", "looksam", "adam", "adamw", "sgd", "mecam", "sam"]
    for optimizer in names:
        for steps in (1, 2):
            write_run(tmp_path, 0.5, optimizer=optimizer, steps=steps)
    figure = drawn(tmp_path)
    shown = [line.optimizer for line in figure.panels["art"]]
    assert (len(shown), shown[:3]) == (8, ["adam", "sam", "mecam"])
    assert "2 more combinations are not drawn" in figure.note


def test_without_evaluations_there_is_no_figure(tmp_path: Path) -> None:
    write_run(tmp_path, 0.5)
    with pytest.raises(Missing, match="several evaluations"):
        drawn(tmp_path)

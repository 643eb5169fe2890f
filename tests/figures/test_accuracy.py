"""Figure 1: which averages are drawn, and which published ones beside them."""

from pathlib import Path

import pytest

from mecam.benchmark import results
from mecam.benchmark.paper import TARGETS
from mecam.figures import accuracy
from mecam.figures.points import Missing
from tests.benchmark.folders import write_run


def drawn(out: Path) -> accuracy.Accuracies:
    return accuracy.values(results.read(out)[0])


def write_all(out: Path, data: str, accuracies: dict[str, float], seeds: tuple[int, ...] = (0,)) -> None:
    """A run on every target: the n-th target has n points more, the second seed one point more."""
    for optimizer, value in accuracies.items():
        for place, target in enumerate(TARGETS[data].values()):
            for seed in seeds:
                share = value + place / 100 + seed / 100
                write_run(out, share, data=data, target=target, optimizer=optimizer, seed=seed)


def test_two_data_sets_are_set_against_each_other_with_the_published_averages_beside(tmp_path: Path) -> None:
    write_all(tmp_path, "VLCS", {"mecam": 0.7, "adam": 0.6})
    write_all(tmp_path, "PACS", {"mecam": 0.8, "adam": 0.75, "sgd": 0.7}, seeds=(0, 1))
    figure = drawn(tmp_path)
    assert figure.data == ("PACS", "VLCS")
    adam, mecam = figure.methods  # sgd has no runs on VLCS; lowest first
    assert (adam.name, adam.kind, mecam.name, mecam.kind) == ("ERM", "optimizers", "MeCAM", "MeCAM")
    assert [point.mean for point in mecam.ours] == pytest.approx([82.0, 71.5])  # 80 + (0 + 1 + 2 + 3)/4, and seed 1
    assert mecam.ours[0].spread == pytest.approx(0.5 / 2**0.5)
    assert mecam.ours[1].spread is None
    assert mecam.published == (88.3, 80.3)
    assert adam.published == (85.5, 77.3)
    assert "backbone" in figure.note


def test_one_data_set_is_enough_and_combinations_are_left_to_the_tables(tmp_path: Path) -> None:
    write_all(tmp_path, "PACS", {"mecam": 0.7})
    for target in TARGETS["PACS"].values():
        write_run(tmp_path, 0.9, data="PACS", target=target, method="coral", optimizer="mecam")
        write_run(tmp_path, 0.8, data="PACS", target=target, method="coral")
        write_run(tmp_path, 0.85, data="PACS", target=target, method="fish")  # under SGD, its own
    assert [(method.name, method.kind) for method in drawn(tmp_path).methods] == [
        ("MeCAM", "MeCAM"),
        ("Adam + CORAL", "methods under Adam"),
        ("Fish", "methods under Adam"),
    ]


def test_a_setting_is_chosen_by_source_validation_not_by_the_target(tmp_path: Path) -> None:
    for rho, accuracy_, validation in ((0.1, 0.5, 0.9), (0.2, 0.7, 0.8)):
        settings = {"rho": rho}
        write_run(tmp_path, accuracy_, validation=validation, optimizer="sam", optimizer_settings=settings)
    [method] = drawn(tmp_path).methods
    assert (method.ours[0].mean, method.published) == (50.0, None)


def test_the_published_setting_comes_before_better_validation(tmp_path: Path) -> None:
    for target in TARGETS["PACS"].values():
        same = {"data": "PACS", "target": target, "optimizer": "mecam", "profile": "paper"}
        write_run(tmp_path, 0.8, validation=0.8, **same)
        write_run(tmp_path, 0.9, validation=0.9, **same, steps=10_000)
    figure = drawn(tmp_path)
    assert [method.ours[0].mean for method in figure.methods] == pytest.approx([80])
    assert figure.note == ""


def test_a_variant_of_a_method_is_not_the_method(tmp_path: Path) -> None:
    for target in TARGETS["PACS"].values():
        write_run(tmp_path, 0.8, data="PACS", target=target, method="fish")
        settings = {"momentum": 0.9}
        write_run(tmp_path, 0.7, data="PACS", target=target, method="fish", optimizer_settings=settings)
    methods = [(method.name, method.published is None) for method in drawn(tmp_path).methods]
    assert methods == [("fish variant + sgd", True), ("Fish", False)]


def test_an_average_over_some_targets_has_no_published_one_beside_it(tmp_path: Path) -> None:
    write_run(tmp_path, 0.5, data="PACS", target="sketch", optimizer="mecam")
    [method] = drawn(tmp_path).methods
    assert method.published is None


def test_without_a_method_on_all_targets_there_is_no_figure(tmp_path: Path) -> None:
    write_run(tmp_path, None)
    with pytest.raises(Missing) as missing:
        drawn(tmp_path)
    assert missing.value.command_for(tmp_path / "a b") == (
        f"mecam bench recipes/figure1.toml --out '{tmp_path / 'a b'}'"
    )

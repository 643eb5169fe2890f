"""What a run costs on this machine."""

from pathlib import Path

import numpy as np
import pytest

from mecam.data.pack import pack
from mecam.data.shapes import ShapesSet, shapes
from mecam.recipe import Recipe
from mecam.training import speed
from mecam.training.footprint import memory_of_step
from mecam.training.machine import find_machine
from mecam.training.speed import Cost, cost_of
from tests.data.folders import make_folder, save

COST = Cost(step=2.0, evaluation=3.0, final=5.0, start=7.0)


@pytest.fixture(scope="module")
def data() -> ShapesSet:
    return shapes(per_class=6)


@pytest.mark.parametrize(("steps", "every", "evaluations"), [(0, 5, 1), (9, 5, 3), (10, 5, 3), (10, 100, 2)])
def test_the_time_of_a_run_has_its_evaluations(steps: int, every: int, evaluations: int) -> None:
    assert COST.seconds(steps, every) == 7 + (steps + 1) * 2 + evaluations * 3 + 5


def test_warm_steps_are_timed_and_not_the_first_ones(data: ShapesSet, monkeypatch: pytest.MonkeyPatch) -> None:
    now, taken = 0.0, []

    def train_step(_run: object, step: int) -> None:
        nonlocal now
        now += 2.0 if taken else 60.0  # the first step warms up
        taken.append(step)

    monkeypatch.setattr(speed, "train_step", train_step)
    monkeypatch.setattr(speed.time, "perf_counter", lambda: now)
    recipe = Recipe(target="sketch", steps=11, batch=2)
    assert speed.seconds_per_step(recipe, find_machine("cpu"), data) == 2.0
    assert taken == [5, 6, 7], "from the middle of the run, where all of a method is at work"


def test_a_run_that_will_diverge_is_timed_and_reports_it_itself(data: ShapesSet) -> None:
    recipe, machine = Recipe(target="sketch", steps=4, batch=2, optimizer="sgd", lr=1e30), find_machine("cpu")
    assert cost_of(recipe, machine, data).step > 0
    assert memory_of_step(recipe, machine, data)[1] > 0


def test_evaluations_cost_by_their_images(data: ShapesSet) -> None:
    cost = cost_of(Recipe(target="sketch", steps=4, batch=2), find_machine("cpu"), data)
    images = 4 * 7 * 6
    watched = 3 * 8 + 34  # a fifth of each source domain, four fifths of the target
    assert cost.evaluation / cost.final == pytest.approx(watched / images)
    assert min(cost.step, cost.final) > 0
    assert cost.start == 0
    two = cost_of(Recipe(target="sketch", sources="photo,art", steps=4, batch=2), find_machine("cpu"), data)
    assert two.evaluation / two.final == pytest.approx((2 * 8 + 34) / (3 * 7 * 6))


def test_features_that_are_not_cached_are_a_part_of_the_time(
    data: ShapesSet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MECAM_CACHE", str(tmp_path))
    recipe = Recipe(target="sketch", backbone="lite0small", trainable="head", steps=3)
    machine = find_machine("cpu")
    assert cost_of(recipe, machine, data).start > 0
    speed.Run(recipe, machine, data)  # computes them
    assert cost_of(recipe, machine, data).start == 0


def test_features_of_domains_that_differ_in_size_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MECAM_CACHE", str(tmp_path))
    root = make_folder(tmp_path / "root")
    save(root / "photo/cat/0000.png", np.zeros((9, 21, 3), dtype=np.uint8))
    data, machine = pack(root, tmp_path / "store", side=32), find_machine("cpu")
    recipe = Recipe(data=str(root), target="photo", backbone="lite0small", trainable="head", steps=3, batch=2)
    speed.Run(recipe, machine, data)
    assert cost_of(recipe, machine, data).start == 0

"""Estimates of the time of runs: measured or, where steps are long, by the passes of one kind that is measured."""

from pathlib import Path

import pytest

from mecam.benchmark import estimate
from mecam.data.domains import DomainSet
from mecam.recipe import Recipe
from mecam.runs.timing import add_timing
from mecam.training.machine import Machine
from mecam.training.speed import Cost
from tests.benchmark.folders import write_run

RECIPES = [
    Recipe(target="sketch", optimizer=optimizer, steps=9, batch=2, evaluate_every=5) for optimizer in ("adam", "mecam")
]


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The optimizers of the runs that are measured; a step of each takes two seconds."""
    optimizers = []

    def cost_of(recipe: Recipe, _machine: Machine, _data: DomainSet) -> Cost:
        optimizers.append(recipe.optimizer)
        return Cost(step=2.0, evaluation=3.0, final=5.0, start=7.0)

    monkeypatch.setattr(estimate, "cost_of", cost_of)
    return optimizers


def test_long_steps_are_estimated_from_one_kind_by_their_passes(
    measured: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(estimate, "LONG", 1.0)
    adam, mecam = estimate.seconds(RECIPES, tmp_path, "cpu").values()
    assert measured == ["adam"]
    assert adam == 7 + 10 * 2 + 3 * 3 + 5  # evaluations after the steps 0, 5 and 9
    assert mecam == 10 * 6 + 3 * 3 + 5  # the features are there by then


def test_short_steps_are_all_measured(measured: list[str], tmp_path: Path) -> None:
    adam, mecam = estimate.seconds(RECIPES, tmp_path, "cpu").values()
    assert measured == ["adam", "mecam"]
    assert mecam == adam - 7


def test_runs_that_were_timed_need_no_measurement(measured: list[str], tmp_path: Path) -> None:
    write = {"target": "art", "steps": 9, "batch": 2}
    add_timing(write_run(tmp_path, 0.5, **write), seconds=40.0, steps=10)
    again, head = Recipe(seed=1, **write), Recipe(seed=1, **write, trainable="head")
    times = estimate.seconds([again, head], tmp_path, "cpu")
    assert (times[again.run_id], measured) == (40.0, ["adam"]), "a head on features is another kind of run"


def test_a_long_benchmark_suggests_what_is_cheaper(
    measured: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(estimate, "open_data", lambda *_, **__: None)
    runs = [Recipe(data="root", backbone="resnet8", target="a", seed=seed, steps=9000) for seed in (0, 1, 2)]
    *_, summary, heading, head, seeds, steps, fit = estimate.forecast(runs, 0, tmp_path, "cpu")
    assert summary == "3 runs to do, 0 done; 15:14:07 in sequence"
    assert heading == "cheaper:"
    assert head.startswith("  --trainable head ")
    assert seeds.startswith("  --seeds 0 (one of 3 seeds)")
    assert steps.startswith("  --batch 8 --steps 500 ")
    assert fit.startswith("  mecam fit root --minutes 15 ")
    assert estimate.forecast(runs[:1], 2, tmp_path, "cpu")[-1] == "1 runs to do, 2 done; 5:04:47 in sequence"
    assert measured == ["adam", "adam"]

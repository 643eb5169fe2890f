"""What a run reports: loss, accuracies, speed; a line per evaluation off a terminal."""

from typing import Any

import pytest

from mecam.progress import Event, Pace
from mecam.recipe import Recipe
from mecam.training.watch import accuracies, description, watching

RECIPE = Recipe(target="sketch", batch=8, steps=100)
TEXT = "source validation 85.0 %, sketch (unseen) 50.0 %"


def record(target: str = "sketch") -> dict[str, Any]:
    values = {"art in": 1.0, "art out": 0.9, "photo in": 1.0, "photo out": 0.8, f"{target} in": 0.5}
    values[f"{target} out"] = 0.1
    return {"step": 0, "splits": {name: {"accuracy": value} for name, value in values.items()}}


def test_accuracies() -> None:
    assert accuracies(record(), RECIPE) == TEXT
    assert accuracies(record(), Recipe()) == "source validation 60.0 %"  # without a target all domains are sources
    assert accuracies({"splits": {"sketch in": {"accuracy": 0.5}}}, RECIPE) == "sketch (unseen) 50.0 %"


def test_steps_are_described_by_loss_last_evaluation_and_speed() -> None:
    now = 1000.0
    describe = description(RECIPE, 3, Pace(lambda: now))
    assert describe(Event("step", 90, 100, loss=1.5, record=record())) == f"loss 1.500, {TEXT}"
    now += 2.0
    assert describe(Event("step", 94, 100, loss=1.25)) == f"loss 1.250, {TEXT}, 48 images/s"
    assert describe(Event("step", 94, 100)) == f"{TEXT}, 48 images/s"  # a GPU's loss is not read


def test_off_a_terminal_a_line_per_evaluation(capsys: pytest.CaptureFixture[str]) -> None:
    long = "a domain with a name that is longer than eighty columns " * 3
    recipe = Recipe(target=long)
    for quiet, expected in (
        (False, f"step 0 of 300: loss 1.000, source validation 85.0 %, {long} (unseen) 50.0 %\n"),
        (True, ""),
    ):
        with watching(recipe, 2, quiet=quiet) as progress:
            progress(Event("step", 0, 300, loss=1.0, record=record(long)))
            progress(Event("step", 1, 300, loss=1.0))
        assert capsys.readouterr() == ("", expected)

"""What a run reports: loss, accuracies, speed; a line per evaluation off a terminal."""

import re
from typing import Any

import pytest

from mecam.progress import Event, Pace
from mecam.recipe import Recipe
from mecam.training.loop import FINAL
from mecam.training.watch import accuracies, description, watching
from tests.test_progress import on_a_terminal

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


def test_steps_are_described_by_loss_evaluation_and_speed() -> None:
    now = 1000.0
    describe = description(RECIPE, 3, Pace(lambda: now))
    assert describe(Event("step", 90, 100, loss=1.5, record=record())) == f"loss 1.500, {TEXT}"
    now += 2.0
    assert describe(Event("step", 94, 100, loss=1.25)) == "loss 1.250, 48 images/s"
    assert describe(Event("step", 94, 100)) == "48 images/s"  # a GPU's loss is not read


def test_on_a_terminal_evaluations_stand_above_the_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = on_a_terminal(monkeypatch, columns=80)
    with watching(RECIPE, 3) as progress:
        progress(Event("step", 0, 300, loss=1.0, record=record()))
        progress(Event("step", 1, 300, loss=0.5))
        progress(Event(FINAL, text=TEXT, kind="done"))
        progress(Event(FINAL, text="the selected weights, on 900 images"))
    lines = [line.rstrip() for line in re.split(r"[\r\n]+", terminal.text())]
    assert lines.count(f"step 0 of 300: loss 1.000, {TEXT}") == 1
    assert lines.count(f"final evaluation is done: {TEXT}") == 1
    bars = [line for line in lines if "━" in line]
    assert any(re.match(r"step +━\S+ 1/300 +\d+:[\d:]+ left, loss 0\.500", line) for line in bars)
    assert any(re.match(r"final evaluation +━+ +the selected weights, on 900", line) for line in bars)
    assert max(map(len, bars)) <= 80


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

"""What a run tells while it goes: words, lines off a terminal, a bar on one, phases of packing."""

import io
import re
import sys
from typing import Any

import pytest

from mecam.data.pack import Progress as Packed
from mecam.recipe import Recipe, make
from mecam.training import Progress
from mecam.training.watch import Words, packing, summary, watching

RECIPE = make({"target": "sketch", "batch": 8, "steps": 100})
LONG = "a domain with a name that is longer than eighty columns " * 3


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def record(step: int, target: str = "sketch") -> dict[str, Any]:
    accuracies = {"art in": 1.0, "art out": 0.9, "photo in": 1.0, "photo out": 0.8, f"{target} in": 0.5}
    accuracies[f"{target} out"] = 0.1
    return {"step": step, "splits": {name: {"accuracy": value} for name, value in accuracies.items()}}


def test_words_of_a_run() -> None:
    clock = Clock()
    words = Words(RECIPE, 3, clock)
    accuracies = "source validation 85.0 %, sketch (unseen) 50.0 %"
    assert words(Progress(0, 100, 1.5, record(0))) == f"loss 1.500, {accuracies}"
    clock.now += 2.0
    assert words(Progress(4, 100, 1.25, None)) == f"loss 1.250, {accuracies}, 48 images/s, 0:00:48 left"
    assert words(Progress(4, 100, None, None)) == f"{accuracies}, 48 images/s, 0:00:48 left"  # a GPU's loss is not read
    assert summary(record(7), RECIPE) == f"step 7: {accuracies}"
    assert summary(record(7), make({})).endswith("source validation 60.0 %")  # without a target all are sources
    nothing_held_out = {"step": 7, "splits": {"sketch in": {"accuracy": 0.5}}}
    assert summary(nothing_held_out, RECIPE) == "step 7: sketch (unseen) 50.0 %"


def test_the_speed_of_a_resumed_run_is_that_of_its_own_steps() -> None:
    clock = Clock()
    words = Words(RECIPE, 1, clock)
    assert words(Progress(90, 100, 1.0, None)) == "loss 1.000"
    clock.now += 10.0
    assert words(Progress(95, 100, 1.0, None)) == "loss 1.000, 4 images/s, 0:00:10 left"


def test_lines_off_a_terminal_are_never_cut(capsys: pytest.CaptureFixture[str]) -> None:
    recipe = make({"target": LONG})
    with watching(recipe, 2) as watch:
        watch(Progress(0, 300, 1.0, record(0, LONG)))
        watch(Progress(1, 300, 1.0, None))
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err == f"step 0 of 300: loss 1.000, source validation 85.0 %, {LONG} (unseen) 50.0 %\n"
    with watching(recipe, 2, quiet=True) as watch:
        watch(Progress(0, 300, 1.0, record(0, LONG)))
    assert capsys.readouterr().err == ""


def on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "200")
    return terminal


def test_a_bar_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = on_a_terminal(monkeypatch)
    recipe: Recipe = make({"target": "[bold]lab", "batch": 8, "steps": 2})
    with watching(recipe, 3) as watch:
        for step in range(3):
            watch(Progress(step, 2, 0.25, record(step, "[bold]lab")))
    shown = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", terminal.getvalue()).splitlines()[-1]
    for expected in ("training", "2/2", "loss 0.250", "85.0 %", "[bold]lab (unseen) 50.0 %", "images/s", "left"):
        assert expected in shown


def test_phases_of_packing(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    with packing() as report:
        assert report is not None
        report(Packed("waiting", 0, 0))
        report(Packed("measuring", 0, 40))
        for done in range(41):
            report(Packed("packing", done, 40, unreadable=done // 40))
    lines = capsys.readouterr().err.splitlines()
    assert lines[:3] == [
        "waiting for another process that packs the same images",
        "measuring 0 of 40 images",
        "packing 0 of 40 images",
    ]
    assert lines[-1] == "packing (1 unreadable) 40 of 40 images"
    assert len(lines) == 2 + 11
    with packing(quiet=True) as report:
        assert report is None
    terminal = on_a_terminal(monkeypatch)
    with packing() as report:
        assert report is not None
        report(Packed("packing", 3, 4))
    assert "packing" in terminal.getvalue()
    assert "75%" in terminal.getvalue()

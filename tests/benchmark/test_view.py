"""What a benchmark says while it runs: lines off a terminal, the log, where it stands."""

import io
from pathlib import Path

import pytest

from mecam.benchmark.jobs import Event
from mecam.benchmark.view import LOG, Board, clock, watching

EVENTS = [
    Event("one", "elsewhere"),
    Event("two", "started", steps=10),
    Event("one", "elsewhere"),
    Event("two", "progress", 5, 10, 81.0, 62.04),
    Event("one", "started", steps=10),
    Event("one", "warning", message="resumes with threads=2"),
    Event("one", "failed", message="ValueError: no"),
    Event("two", "done", 10, 10, 90.0, 70.0),
]
SAID = [
    "one is claimed by another process",
    "two begins",
    "one begins",
    "one: resumes with threads=2",
    "one FAILED: ValueError: no",
    "two is done: source validation 90.0 %, unseen 70.0 %",
]


def test_news_are_told_once_off_a_terminal_and_in_the_log(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with watching(4, 1, tmp_path) as watch:
        for event in EVENTS:
            watch(event)
    lines = capsys.readouterr().err.splitlines()
    assert [line.partition("; ")[0] for line in lines] == SAID
    assert "1 of 4 runs done, 1 in another process, ? left" in lines[0]
    assert "1 of 4 runs done, ? left" in lines[2]
    assert "2 of 4 runs done, 1 failed, " in lines[-1]
    logged = (tmp_path / LOG).read_text().splitlines()
    assert [line.split(" ", 2)[2] for line in logged] == SAID


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_on_a_terminal_a_warning_stands_above_the_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shown = Terminal()
    monkeypatch.setattr("sys.stderr", shown)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "200")
    with watching(2, 0, tmp_path) as watch:
        watch(Event("one", "started", steps=10))
        watch(Event("one", "warning", message="was trained with [a]"))
        watch(Event("one", "progress", 5, 10))
    assert shown.getvalue().count("one: was trained with [a]") == 1
    assert "5/10" in shown.getvalue()


def test_the_time_that_a_run_needs_is_told_from_its_own_pace() -> None:
    board = Board(1)
    board.note(Event("one", "started", steps=100))
    assert board.active["one"].seconds_left(board.active["one"].began + 1) is None
    board.note(Event("one", "progress", 40, 100))  # resumed there
    board.note(Event("one", "progress", 60, 100))
    assert board.active["one"].seconds_left(board.active["one"].began + 10) == 20
    assert (clock(20), clock(3725), clock(None)) == ("0:20", "1:02:05", "?")

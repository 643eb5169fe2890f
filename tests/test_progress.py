"""Events, their pace, and how they are shown: lines off a terminal, bars on one."""

import io
import re
import sys
from dataclasses import replace

import pytest

from mecam.progress import Event, Pace, clock, named, shown

NAME = "a task with a name that is longer than eighty columns " * 3


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True

    def text(self) -> str:
        return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", self.getvalue())


def on_a_terminal(monkeypatch: pytest.MonkeyPatch, columns: int = 200) -> Terminal:
    stderr = Terminal()
    monkeypatch.setattr("sys.stderr", stderr)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", str(columns))
    return stderr


@pytest.mark.parametrize(
    ("event", "line"),
    [
        (Event("packing", 3, 40, "images", "1 unreadable"), "packing 3 of 40 images: 1 unreadable"),
        (Event("step", 3, 40), "step 3 of 40"),
        (Event("waiting", text="another process packs"), "waiting: another process packs"),
        (Event("one", 40, 40, text="90.0 %", kind="done"), "one is done: 90.0 %"),
        (Event("one", kind="warning", text="resumes with threads=2"), "one: resumes with threads=2"),
    ],
)
def test_lines(event: Event, line: str) -> None:
    assert event.line() == line


def test_pace_counts_from_the_first_event_and_from_a_new_start() -> None:
    now = 1000.0
    pace = Pace(lambda: now)
    event = Event("run", 90, 100, text="loss 1")
    assert pace.with_time_left(event) == event
    now += 10
    assert pace.with_time_left(replace(event, done=95)).text == "loss 1, 0:10 left"
    assert pace(replace(event, kind="started")) is None
    assert pace(event) is None
    now += 4
    assert pace(replace(event, done=92)) == 2
    assert (clock(20), clock(3725)) == ("0:20", "1:02:05")


def test_off_a_terminal_a_line_per_tenth_that_is_never_cut(capsys: pytest.CaptureFixture[str]) -> None:
    with shown() as show:
        show(Event("waiting", text="another process"))
        for done in range(41):
            show(Event(NAME, done, 40, "images"))
            named(show, NAME)(Event("trace", done + 1, None, "products"))
    out, err = capsys.readouterr()
    lines = err.splitlines()
    assert out == ""
    assert lines[:3] == ["waiting: another process", f"{NAME} 0 of 40 images", f"{NAME}, trace"]
    assert len(lines) == 2 + 11
    assert lines[-1].startswith(f"{NAME} 40 of 40 images: ")
    with shown(quiet=True) as show:
        show(Event("packing", 1, 2))
    assert capsys.readouterr().err == ""


def test_a_bar_per_task_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = on_a_terminal(monkeypatch)
    with shown() as show:
        show(Event("[bold]lab", 3, 4, "images", "[red] (unseen) 50.0 %"))
        show(Event("eigenvalue", 7, None, "products"))
    for text in ("[bold]lab", "3/4 images [red] (unseen) 50.0 %", "eigenvalue", "7/?", "products"):
        assert text in terminal.text()


def test_bars_fit_into_80_columns_and_keep_the_count_and_the_time_left(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = on_a_terminal(monkeypatch, columns=80)
    run = "pacs-art_painting-erm-mecam-none-seed0-1d5b8acd7b"
    with shown() as show:
        show(Event("benchmark", 3, 12, "runs done", "1 failed"))
        show(Event(run, 0, 300, kind="started"))
        for done in (1, 100):
            show(Event(run, done, 300, text="source validation 85.0 %, art_painting (unseen) 50.0 %"))
        show(Event("another", 300, 300, text="source validation 85.0 %", kind="done"))
    lines = [line.rstrip() for line in re.split(r"[\r\n]+", terminal.text())]
    bars = [line for line in lines if "━" in line]
    assert max(map(len, bars)) <= 80
    assert any(re.match(r"pacs-art_painting-erm-mecam-none-seed\S*… ━\S+ 100/300 +\d:\d\d left", line) for line in bars)
    assert any(re.match(r"benchmark +━\S+ 3/12 runs done 1 failed", line) for line in bars)
    assert "another is done: source validation 85.0 %" in lines, "an accuracy stays on the screen"


def test_on_a_terminal_messages_stand_above_the_bars_and_ended_tasks_leave(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = on_a_terminal(monkeypatch)
    with shown() as show:
        show(Event("one", 0, 10, kind="started"))
        show(Event("two", 5, 10))
        show(Event("one", text="was trained with [a]", kind="warning"))
        show(Event("one", text="ValueError: [no]", kind="failed"))
        show(Event("two", 7, 10))
    assert terminal.text().count("one: was trained with [a]") == 1
    assert terminal.text().count("one FAILED: ValueError: [no]") == 1
    assert [line.split()[0] for line in terminal.text().splitlines()[-1:]] == ["two"]
    assert "7/10" in terminal.text()


def test_a_notebook_has_bars_if_it_can_show_widgets(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "ipykernel", None)
    for widgets in (None, object()):
        monkeypatch.setattr("mecam.progress.find_spec", lambda _, widgets=widgets: widgets)
        with shown() as show:
            show(Event("packing", 3, 4, "images"))
        assert ("packing 3 of 4 images" in capsys.readouterr().err) == (widgets is None)

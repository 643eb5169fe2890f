"""What a benchmark reports: lines off a terminal, and the log."""

from pathlib import Path

import pytest

from mecam.benchmark.experiment import LOG, shown_and_logged
from mecam.progress import Event

EVENTS = [
    Event("one", kind="elsewhere"),
    Event("two", 0, 10, kind="started"),
    Event("one", kind="elsewhere"),
    Event("two", 5, 10, text="unseen 62.0 %"),
    Event("one", 0, 10, kind="started"),
    Event("one", kind="warning", text="resumes with threads=2"),
    Event("one", kind="failed", text="ValueError: no"),
    Event("two", 10, 10, text="unseen 70.0 %", kind="done"),
]
NEWS = [
    "one is claimed by another process",
    "two begins",
    "one begins",
    "one: resumes with threads=2",
    "one FAILED: ValueError: no",
    "two is done: unseen 70.0 %",
]


def test_news_are_reported_once_off_a_terminal_and_in_the_log(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with shown_and_logged(4, 1, tmp_path) as progress:
        for event in EVENTS:
            progress(event)
    lines = capsys.readouterr().err.splitlines()
    assert [line for line in lines if not line.startswith("benchmark")] == NEWS
    counts = [line for line in lines if line.startswith("benchmark")]
    assert counts[:4] == [
        "benchmark 1 of 4 runs done",
        "benchmark 1 of 4 runs done: 1 in another process",
        "benchmark 1 of 4 runs done",
        "benchmark 1 of 4 runs done: 1 failed",
    ]
    assert counts[4].startswith("benchmark 2 of 4 runs done: 1 failed, ")
    logged = (tmp_path / LOG).read_text().splitlines()
    assert [line.split(" ", 2)[2] for line in logged] == NEWS

"""records.jsonl: every complete line, whatever a kill did to the last one."""

import errno
import math
import os
from pathlib import Path
from typing import Any

import pytest

from mecam.runs import RunError
from mecam.runs.records import append, cut, read
from tests.runs.faults import before_each, failing, refusal_of

RECORDS: list[dict[str, Any]] = [
    {"step": 0, "loss": 1.25},
    {"step": 100, "loss": 0.1 + 0.2, "note": "two\nlines, é"},
    {"step": 200, "loss": math.inf},
]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    for record in RECORDS:
        append(tmp_path / "records.jsonl", record)
    return tmp_path / "records.jsonl"


def test_records_come_back_one_a_line(file: Path) -> None:
    assert read(file) == RECORDS
    assert file.read_bytes().count(b"\n") == 3
    assert read(file.with_name("none.jsonl")) == []


@pytest.mark.attack("Kills, full disks, power cuts")
def test_a_last_line_cut_anywhere_is_left_out_and_written_over(file: Path) -> None:
    whole = file.read_bytes()
    start = whole.rfind(b"\n", 0, -1) + 1
    for end in range(start, len(whole)):
        file.write_bytes(whole[:end])
        assert read(file) == RECORDS[:2]
        append(file, RECORDS[2])
        assert file.read_bytes() == whole
        file.write_bytes(whole[:end])
        cut(file, 500)
        assert file.read_bytes() == whole[:start]


@pytest.mark.attack("Kills, full disks, power cuts")
def test_what_a_power_cut_writes_into_the_last_line_is_left_out(file: Path) -> None:
    whole = file.read_bytes()
    file.write_bytes(whole + b"\0" * 40)
    assert read(file) == RECORDS
    append(file, {"step": 300})
    assert file.read_bytes() == whole + b'{"step": 300}\n'


@pytest.mark.attack("Damage")
@pytest.mark.parametrize("damage", [b"\0\0\0\n", b"{\n", b"[1]\n", b'{"loss": 1}\n', b'{"step": true}\n', b"\xff\n"])
def test_a_damaged_line_inside_is_named(file: Path, damage: bytes) -> None:
    lines = file.read_bytes().splitlines(keepends=True)
    file.write_bytes(lines[0] + damage + lines[2])
    for use in (read, lambda path: cut(path, 100)):
        with pytest.raises(RunError, match="damaged at line 2") as refusal:
            use(file)
        assert str(file) in str(refusal.value)


@pytest.mark.parametrize(
    ("step", "left"), [(None, 0), (-1, 0), (0, 1), (99, 1), (100, 2), (150, 2), (200, 3), (999, 3)]
)
def test_cut_keeps_the_records_up_to_a_step(file: Path, step: int | None, left: int) -> None:
    cut(file, step)
    assert read(file) == RECORDS[:left]


def test_cut_touches_nothing_without_need(file: Path) -> None:
    before = os.stat(file).st_ino
    cut(file, 200)
    assert os.stat(file).st_ino == before
    cut(file.with_name("none.jsonl"), 5)
    assert not file.with_name("none.jsonl").exists()


@pytest.mark.parametrize("record", [{}, {"step": 1.0}, {"step": "1"}, {"step": True}])
def test_a_record_without_a_step_is_refused(file: Path, record: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="integer 'step'"):
        append(file, record)
    assert read(file) == RECORDS


@pytest.mark.attack("Kills, full disks, power cuts")
def test_an_error_at_any_call_leaves_whole_lines(file: Path) -> None:
    whole, at = file.read_bytes(), 0
    while True:
        at += 1
        file.write_bytes(whole)
        with before_each(failing(at, errno.ENOSPC), ("open", "write", "fsync")):
            refusal = refusal_of(lambda: append(file, {"step": 300}))
        if refusal is None:
            break
        assert str(file) in refusal
        assert "make room" in refusal
        assert file.read_bytes() in (whole, whole + b'{"step": 300}\n')
    assert at == 6  # after open, write and fsync of the file, open and fsync of the folder
    assert read(file) == [*RECORDS, {"step": 300}]


def test_a_record_is_on_the_disk_when_append_returns(tmp_path: Path) -> None:
    calls: list[str] = []

    def log(name: str, real: Any, args: tuple[Any, ...]) -> Any:
        calls.append(name)
        return real(*args)

    with before_each(log, ("write", "fsync")):
        append(tmp_path / "records.jsonl", {"step": 0})
    assert calls == ["write", "fsync", "fsync"]  # the line, its file, and the name of the new file

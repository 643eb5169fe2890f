"""sessions.jsonl: a line per start and resume, checked like the rest, and no part of what must be equal."""

import json
from pathlib import Path

import pytest
import torch

from mecam.runs import CircumstancesWarning, RunError, RunFolder, sessions

HERE = {"torch": "2.13.0+cpu", "device": "cpu", "instruction_set": "AVX2", "threads": 1, "python": "3.11"}
THERE = {**HERE, "threads": 2}


def resumed(path: Path, *, run_id: str = "some-id") -> RunFolder:
    """An unfinished run: begun here, resumed there at step 3."""
    folder = RunFolder(path)
    folder.begin({}, HERE, run_id=run_id)
    folder.append({"step": 2})
    folder.save_checkpoint({"step": 2})
    folder.begin({}, THERE, run_id=run_id)
    return folder


def finished(path: Path, *, run_id: str = "some-id") -> RunFolder:
    folder = resumed(path, run_id=run_id)
    folder.write_model({"w": torch.ones(2)})
    folder.finish({"accuracy": 0.5})
    return folder


def test_each_start_and_resume_is_a_line(tmp_path: Path) -> None:
    folder = resumed(tmp_path)
    assert folder.read_sessions() == [{"step": 0, "environment": HERE}, {"step": 3, "environment": THERE}]
    lines = [json.loads(line) for line in folder.sessions_file.read_text().splitlines()]
    assert [(line["step"], line["environment"]["threads"]) for line in lines] == [(0, 1), (3, 2)]
    folder.verify()


def test_a_finished_run_gets_no_more_lines(tmp_path: Path) -> None:
    folder = finished(tmp_path)
    before = folder.sessions_file.read_bytes()
    RunFolder(tmp_path).begin({}, HERE, run_id="some-id")
    assert folder.sessions_file.read_bytes() == before
    assert [session.get("ended") for session in folder.read_sessions()] == [None, "done"]
    folder.verify()


def test_how_often_a_run_was_resumed_does_not_show_in_its_other_files(tmp_path: Path) -> None:
    once, often = finished(tmp_path / "once"), resumed(tmp_path / "often")
    for _ in range(3):
        often.begin({}, HERE, run_id="some-id")
    often.write_model({"w": torch.ones(2)})
    often.finish({"accuracy": 0.5})
    assert len(often.read_sessions()) == 5
    assert often.done_file.read_bytes() == once.done_file.read_bytes()


@pytest.mark.attack("Kills, full disks, power cuts")
@pytest.mark.parametrize("cut", [1, 2, 40, 10_000])
def test_a_last_line_that_was_cut_off_is_left_out_and_written_over(cut: int, tmp_path: Path) -> None:
    folder = resumed(tmp_path)
    first, second = folder.sessions_file.read_bytes().splitlines(keepends=True)
    folder.sessions_file.write_bytes(first + second[: -min(cut, len(second) - 1)])
    assert [session["step"] for session in folder.read_sessions()] == [0]
    folder.verify()
    folder.begin({}, THERE, run_id="some-id")
    assert folder.sessions_file.read_bytes() == first + second


def test_a_folder_from_before_there_were_sessions(tmp_path: Path) -> None:
    folder = resumed(tmp_path)
    folder.sessions_file.unlink()
    folder.verify()
    assert folder.read_sessions() == []
    state = folder.begin({}, THERE, run_id="some-id")
    assert state is not None
    assert folder.read_sessions() == [{"step": 3, "environment": THERE}]
    old = RunFolder(tmp_path / "old")
    old.begin({}, HERE, run_id="x")
    old.sessions_file.unlink()
    old.finish({})
    assert old.read_sessions() == []
    old.verify()


@pytest.mark.attack("Damage")
def test_damage_in_a_finished_run_is_noticed(tmp_path: Path) -> None:
    folder, other = finished(tmp_path / "one"), finished(tmp_path / "other", run_id="other-id")
    data = folder.sessions_file.read_bytes()
    first, second = data.splitlines(keepends=True)
    changed = data.replace(b'"threads": 2', b'"threads": 1')
    assert changed != data
    for damaged in (changed, first, second, second + first, data[:-1], data[:-30], data + b"x", data + second, b""):
        folder.sessions_file.write_bytes(damaged)
        with pytest.raises(RunError, match=r"sessions\.jsonl is damaged"):
            folder.verify()
    folder.sessions_file.write_bytes(other.sessions_file.read_bytes())
    with pytest.raises(RunError, match=r"sessions\.jsonl is damaged at line 1: .* or it is another run's"):
        folder.verify()
    folder.sessions_file.unlink()
    with pytest.raises(RunError, match=r"cannot read .*sessions\.jsonl"):
        folder.verify()


@pytest.mark.attack("Damage")
def test_damage_in_an_unfinished_run_is_named(tmp_path: Path) -> None:
    folder = resumed(tmp_path)
    folder.sessions_file.write_bytes(folder.sessions_file.read_bytes().replace(b"AVX2", b"AVX3"))
    with pytest.raises(RunError, match=r"sessions\.jsonl is damaged at line 1"):
        folder.begin({}, HERE, run_id="some-id")
    with pytest.raises(RunError, match=r"sessions\.jsonl is damaged at line 1"):
        folder.verify()


@pytest.mark.attack("What is promised bit for bit")
def test_what_may_change_the_last_bits() -> None:
    assert sessions.resumed(HERE, {**HERE, "python": "3.12", "commit": "abc"}) is None
    warning = sessions.resumed({**HERE, "torch": "2.12.0"}, {**THERE, "python": "3.12"})
    assert isinstance(warning, CircumstancesWarning)
    assert str(warning) == (
        "this run was trained with torch=2.12.0, threads=1 and resumes with torch=2.13.0+cpu, threads=2: "
        "results may differ in the last bits"
    )


def test_what_an_older_version_did_not_record_is_no_difference() -> None:
    old = {name: value for name, value in HERE.items() if name != "instruction_set"}
    assert sessions.resumed(old, HERE) is None
    assert sessions.resumed({}, HERE) is None
    assert sessions.resumed(None, HERE) is None


def test_threads_do_not_count_on_a_gpu() -> None:
    gpu = {**HERE, "device": "NVIDIA H200"}
    assert sessions.resumed(gpu, {**gpu, "threads": 8}) is None
    warning = sessions.resumed(HERE, {**gpu, "threads": 8})
    assert "with device=cpu and resumes with device=NVIDIA H200:" in str(warning)


def test_sessions_that_were_repeated_are_no_part_of_the_run() -> None:
    recorded = [{"step": step, "number": number} for number, step in enumerate((0, 0, 5, 9, 7))]
    assert [session["number"] for session in sessions.used(recorded)] == [1, 2, 4]

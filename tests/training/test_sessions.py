"""Runs that stop under one set of circumstances and resume under another: one line, and a record of both."""

import json
import os
import shutil
import signal
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

from mecam.data.shapes import ShapesSet, shapes
from mecam.progress import Event
from mecam.recipe import Recipe
from mecam.runs import RunFolder
from mecam.training import CircumstancesWarning, Interrupted, environment, train
from tests.processes import SOURCE, run_each

LIMITS = (*environment.ONEDNN_LIMITS, *environment.MKL_SETTINGS, "ATEN_CPU_CAPABILITY")
SMALL = {"target": "sketch", "steps": 4, "evaluate_every": 2, "batch": 2, "image_size": 8}
START = f"""
import os, signal, sys
from mecam.recipe import Recipe
from mecam.training import Interrupted, train
for how in sys.argv[2:]:
    def stop(event):
        if event.done == 1:
            os.kill(os.getpid(), getattr(signal, how))
    try:
        train(Recipe(**{SMALL}), f"{{sys.argv[1]}}/{{how}}", device="cpu", progress=stop)
    except Interrupted:
        print("saved", how, flush=True)
"""
TRAIN: list[object] = ["train", "--target", "sketch", "--steps", "4", "--device", "cpu", "--quiet"]
TRAIN += [word for name in ("evaluate_every", "batch", "image_size") for word in ("--set", f"{name}={SMALL[name]}")]


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


def surroundings(**settings: str) -> dict[str, str]:
    """These settings of torch's CPU kernels, and no others."""
    # threads that spin while they wait take most of the time where cores are shared
    return {**dict.fromkeys(LIMITS, ""), "OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE", **settings}


def start(out: Path, cache: Path, *how: str, **settings: str) -> None:
    """Runs in folders named by the signals that stop them; SIGKILL is the last."""
    variables = {**os.environ, "PYTHONPATH": str(SOURCE), "MECAM_CACHE": str(cache), **surroundings(**settings)}
    variables = {name: value for name, value in variables.items() if value}
    done = subprocess.run([sys.executable, "-c", START, out, *how], env=variables, capture_output=True, text=True)
    assert done.stdout == "saved SIGTERM\n", done.stderr


def resume(out: Path, cache: Path, *how: str, **settings: str) -> list[tuple[list[str], list[dict[str, Any]]]]:
    """What `mecam train` says of each of them on stderr, and the sessions of the run."""
    commands = [[*TRAIN, "--out", out / name] for name in how]
    found = []
    for name, done in zip(
        how, run_each(*commands, cwd=out, **surroundings(MECAM_CACHE=str(cache), **settings)), strict=True
    ):
        assert done.code == 0, done.err
        [file] = (out / name).glob("*/sessions.jsonl")
        RunFolder(file.parent).verify()
        found.append((done.err.splitlines(), [json.loads(line) for line in file.read_text().splitlines()]))
    return found


@pytest.mark.attack("What is promised bit for bit")
def test_another_instruction_set(tmp_path: Path, cache: Path) -> None:
    start(tmp_path, cache, "SIGTERM", ATEN_CPU_CAPABILITY="default")
    [(said, found)] = resume(tmp_path, cache, "SIGTERM")
    first, own = (session["environment"]["instruction_set"] for session in found)
    if first == own:
        pytest.skip(f"torch has one set of kernels for this processor, {own}")
    assert first == "DEFAULT"
    assert said == [
        f"mecam: this run was trained with instruction_set=DEFAULT and resumes with instruction_set={own}: "
        "results may differ in the last bits"
    ]
    assert [session["step"] for session in found] == [0, 2]


@pytest.mark.attack("What is promised bit for bit")
def test_another_number_of_threads(tmp_path: Path, cache: Path) -> None:
    start(tmp_path, cache, "SIGTERM", "SIGKILL")
    saved, lost = resume(tmp_path, cache, "SIGTERM", "SIGKILL", OMP_NUM_THREADS="2")
    line = "mecam: this run was trained with threads=1 and resumes with threads=2: results may differ in the last bits"
    for (said, found), step in ((saved, 2), (lost, 0)):
        assert said == ([line] if step else [])  # without a checkpoint it starts over
        assert [session["step"] for session in found] == [0, step]
        assert [session["environment"]["threads"] for session in found] == [1, 2]


@pytest.fixture(scope="module")
def data() -> ShapesSet:
    return shapes(per_class=2)


@pytest.fixture
def stopped(data: ShapesSet, tmp_path: Path) -> Path:
    """The --out of a run that was stopped after step 1."""

    def stop(event: Event) -> None:
        if event.done == 1:
            signal.raise_signal(signal.SIGTERM)

    with pytest.raises(Interrupted):
        train(Recipe(**SMALL), tmp_path / "out", device="cpu", data=data, progress=stop)
    return tmp_path / "out"


def test_the_same_circumstances_are_not_worth_a_word(stopped: Path, data: ShapesSet) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        folder = train(Recipe(**SMALL), stopped, device="cpu", data=data)
    first, second = folder.read_sessions()
    assert (first["step"], second["step"]) == (0, 2)
    assert first["environment"] == second["environment"]


def test_from_python_it_is_a_warning(stopped: Path, data: ShapesSet, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment, "instruction_set", lambda: "another")
    with pytest.warns(CircumstancesWarning, match="resumes with instruction_set=another: results may differ") as seen:
        folder = train(Recipe(**SMALL), stopped, device="cpu", data=data)
    assert len(seen) == 1
    assert len(folder.read_sessions()) == 2


@pytest.mark.attack("What is promised bit for bit")
def test_a_resume_can_be_refused_and_stays_refused(
    stopped: Path, data: ShapesSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    with warnings.catch_warnings(), monkeypatch.context() as elsewhere:
        warnings.simplefilter("error", CircumstancesWarning)
        elsewhere.setattr(environment, "instruction_set", lambda: "another")
        for _ in range(2):
            with pytest.raises(CircumstancesWarning):
                train(Recipe(**SMALL), stopped, device="cpu", data=data)
    assert len(train(Recipe(**SMALL), stopped, device="cpu", data=data).read_sessions()) == 2


def test_a_change_is_told_once(stopped: Path, data: ShapesSet, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(event: Event) -> None:
        if event.done == 2:
            signal.raise_signal(signal.SIGTERM)

    monkeypatch.setattr(environment, "instruction_set", lambda: "another")
    seen: list[Warning] = []
    with pytest.raises(Interrupted):
        train(Recipe(**SMALL), stopped, device="cpu", data=data, progress=stop, warn=seen.append)
    train(Recipe(**SMALL), stopped, device="cpu", data=data, warn=seen.append)
    assert len(seen) == 1, "the third session is as the second"


def test_a_run_without_sessions_resumes(stopped: Path, data: ShapesSet, monkeypatch: pytest.MonkeyPatch) -> None:
    """run.json tells the circumstances of a run that is older than sessions.jsonl."""
    [file] = stopped.glob("*/sessions.jsonl")
    file.unlink()
    again = stopped.with_name("again")
    shutil.copytree(stopped, again)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        folder = train(Recipe(**SMALL), stopped, device="cpu", data=data)
    assert [session["step"] for session in folder.read_sessions()] == [2]
    folder.verify()
    monkeypatch.setattr(environment, "instruction_set", lambda: "another")
    with pytest.warns(CircumstancesWarning):
        train(Recipe(**SMALL), again, device="cpu", data=data)


def test_limits_on_libraries_are_part_of_the_instruction_set(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in LIMITS:
        monkeypatch.delenv(name, raising=False)
    own = torch.backends.cpu.get_cpu_capability()
    assert environment.instruction_set() == own
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "default")
    assert environment.instruction_set() == own
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "sse41")
    assert environment.instruction_set() == f"{own}, oneDNN at most SSE41"
    monkeypatch.setenv("MKL_CBWR", "COMPATIBLE")
    assert environment.instruction_set() == f"{own}, oneDNN at most SSE41, MKL_CBWR=COMPATIBLE"

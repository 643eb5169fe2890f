"""Run as a script: SIGKILL at every system call that writes, then look at what is left. Prints the number of kills.

Each attempt is a fork of this one process, so that torch is imported once.
"""

import json
import os
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import torch

from mecam.runs import RunFolder, checkpoint
from mecam.storage.files import is_temporary
from tests.runs.faults import before_each, killing

OLD = {"step": 1, "weights": torch.arange(3.0), "note": "old"}
NEW = {"step": 2, "weights": torch.arange(4.0), "note": "new"}
EVALUATIONS = (1, 2)


def is_killed(at: int, work: Callable[[], None]) -> bool:
    """Whether the work in a fork got as far as call number `at`."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            with before_each(killing(at)):
                work()
            status = 0
        finally:
            os._exit(status)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status) or os.waitstatus_to_exitcode(status) == 0, status
    return os.WIFSIGNALED(status)


def kill_saves(root: Path) -> int:
    """A killed save leaves the former checkpoint or the new one, and the next save leaves nothing else."""
    at, notes = 1, set()
    while True:
        folder = root / f"save-{at}"
        checkpoint.save(folder, OLD)
        killed = is_killed(at, lambda folder=folder: checkpoint.save(folder, NEW))
        state = checkpoint.load(folder)
        expected = {"old": OLD, "new": NEW}[state["note"]]
        assert torch.equal(state["weights"], expected["weights"])
        assert state["step"] == expected["step"]
        notes.add(state["note"])
        if not killed:
            assert state["note"] == "new"
            break
        checkpoint.save(folder, OLD)
        assert len(list(folder.iterdir())) == 3
        shutil.rmtree(folder)
        at += 1
    assert notes == {"old", "new"}
    return at - 1


def run(path: Path) -> None:
    """A small run: its weights depend on every step from the start."""
    folder = RunFolder(path)
    state = folder.begin({"lr": 0.1}, {"machine": "this"}, run_id="run")
    if folder.is_done():
        return
    weights = state["weights"] if state else torch.ones(5)
    for step in EVALUATIONS[state["step"] if state else 0 :]:
        weights = weights * 1.1 + step
        folder.append({"step": step, "loss": weights.sum().item()})
        folder.save_checkpoint({"step": step, "weights": weights})
    folder.write_model({"w": weights}, {"classes": ["a", "b"]})
    folder.finish({"accuracy": 0.5})


def kill_runs(root: Path) -> int:
    """A run that is killed, some of them twice, and started again ends in the same files as one that is not."""
    run(root / "whole")
    names = ("run.json", "records.jsonl", "model.safetensors", "done.json")
    expected = {name: (root / "whole" / name).read_bytes() for name in names}
    at = 1
    while True:
        path = root / f"run-{at}"
        killed = is_killed(at, lambda path=path: run(path))
        if at % 4 == 0:
            is_killed(at // 2 + 3, lambda path=path: run(path))
        run(path)
        assert {name: (path / name).read_bytes() for name in names} == expected, f"killed at call {at}"
        assert not any(is_temporary(file) for file in path.iterdir())
        RunFolder(path).verify()
        shutil.rmtree(path)
        if not killed:
            return at - 1
        at += 1


def main() -> None:
    torch.set_num_threads(1)
    os.fsync = lambda _: None  # slow, and of no use against kills: what was written stays; for power cuts see faults.py
    with tempfile.TemporaryDirectory(dir=sys.argv[1]) as root:
        kills = {f.__name__: f(Path(root)) for f in (kill_saves, kill_runs)}
    print(json.dumps(kills))


if __name__ == "__main__":
    main()

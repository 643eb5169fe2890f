"""Run as a script under LD_PRELOAD: stop, kill or fail a training at its n-th call that changes a file.

    LD_PRELOAD=faults.so python -m tests.reliability.pauses FOLDER SIGKILL:19,43 pause:2/5 pause@43:19 ...

A way is SIGKILL, ENOSPC, EIO, or pause: SIGSTOP for longer than the lease, while a successor finishes the run. In
pause@43 the successor is stopped at its 43rd call, the sleeper wakes, and then the successor continues. The numbers are
calls; 2/5 are all whose number divided by 5 leaves 2. Every process is a fork of this one, so that torch is imported
once. Prints a JSON object: the calls of an undisturbed training, the number of attacks, and what was wrong.
"""

import ctypes
import errno
import json
import os
import shutil
import signal
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path

import torch

from mecam.benchmark.records_file import MEASUREMENTS
from mecam.benchmark.render import table
from mecam.benchmark.worker import work
from mecam.data.shapes import shapes
from mecam.progress import Event
from mecam.recipe import Recipe
from mecam.runs import RunFolder
from mecam.runs.find import verify
from mecam.runs.timing import TIMING
from mecam.storage import claims
from mecam.training import loop

RECIPE = {"target": "art", "steps": 2, "evaluate_every": 1, "batch": 2, "image_size": 8, "optimizer": "sam", "track": 1}
KEPT = (
    "run.json",
    "records.jsonl",
    "tracking.jsonl",
    "model.safetensors",
    "predictions.safetensors",
    "done.json",
    MEASUREMENTS,
)
DONE, REFUSED, FAILED, BROKEN = 0, 3, 4, 5  # exit codes of a training
LEASE = 0.2
Left = tuple[dict[str, bytes], list[str], str]

faults = ctypes.CDLL(os.environ["LD_PRELOAD"])
data = shapes(per_class=2)


def measure(run: RunFolder, *_: object) -> None:
    """Write a measurement, as `bench --measure` does."""
    file = run.path / MEASUREMENTS
    if not file.exists():
        run.writer.write(file, b"{}")


class Attack:
    """One folder of runs, and the processes that train in it."""

    def __init__(self, out: Path) -> None:
        self.out = out
        self.said = out.with_name(f"{out.name}.said")

    def start(self, at: int = 0, how: int = 0) -> int:
        """Fork a training that meets a fault."""
        if pid := os.fork():
            return pid
        code = BROKEN
        try:
            faults.arm(str(self.out).encode(), at, how)
            code = self.train()
        except Exception:
            traceback.print_exc()
        finally:
            os._exit(code)

    def train(self) -> int:
        """Train and measure, as a benchmark does."""
        events: list[Event] = []
        work(Recipe(**RECIPE), self.out, "cpu", events.append, data=data, after=measure)
        if events[-1].kind == "failed":
            self.said.write_text(events[-1].text)
        return {"done": DONE, "elsewhere": REFUSED, "failed": FAILED}[events[-1].kind]

    def insist(self, at: int = 0, how: int = 0) -> int:
        """Train until no other process holds the run; return the id of a process that stopped, or 0."""
        while True:
            pid = self.start(at, how)
            _, status = os.waitpid(pid, os.WUNTRACED)
            if os.WIFSTOPPED(status):
                return pid
            code = os.waitstatus_to_exitcode(status)
            if code == DONE:
                return 0
            if code != REFUSED:
                raise RuntimeError(f"a training ended with {code}: {self.word()}")
            time.sleep(LEASE / 4)

    def word(self) -> str:
        return self.said.read_text() if self.said.exists() else ""

    def left(self) -> Left:
        """What is compared: contents, names of all files, the table."""
        (run,) = self.out.iterdir()
        names = sorted(str(path.relative_to(run)) for path in run.rglob("*") if path.name != TIMING)
        contents = {name: (run / name).read_bytes() for name in KEPT if (run / name).exists()}
        return contents, [_unnumbered(name) for name in names], table(self.out, form="json")[0]


def _unnumbered(name: str) -> str:
    return "".join("#" if letter.isdigit() else letter for letter in name)


def pause(attack: Attack, at: int, second: int) -> str | None:
    """Stop a training, let another one take over, wake the first; return what it did, None if it never stopped."""
    sleeper = attack.start(at, -signal.SIGSTOP)
    if not _stops(sleeper):
        return None
    successor = attack.insist(second, -signal.SIGSTOP)
    os.kill(sleeper, signal.SIGCONT)
    code = _code(sleeper)
    if successor:
        os.kill(successor, signal.SIGCONT)
        codes = code, _code(successor)
        return "" if DONE in codes and set(codes) <= {DONE, REFUSED} else f"the trainings ended with {codes}"
    return "" if code in (DONE, REFUSED) else f"the sleeper ended with {code}: {attack.word()}"


def _stops(pid: int) -> bool:
    _, status = os.waitpid(pid, os.WUNTRACED)
    return os.WIFSTOPPED(status)


def _code(pid: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def kill(attack: Attack, at: int, _: int) -> str | None:
    if _code(attack.start(at, -signal.SIGKILL)) != -signal.SIGKILL:
        return None
    attack.insist()
    return ""


def fail(number: int) -> Callable[[Attack, int, int], str | None]:
    """A call fails; the message names a file, and the same command finishes the run."""

    def go(attack: Attack, at: int, _: int) -> str | None:
        code = _code(attack.start(at, number))
        message = attack.word()
        attack.insist()
        if code == FAILED and str(attack.out) not in message:
            return f"the message names no file: {message}"
        return "" if code in (DONE, FAILED, REFUSED) else f"the training ended with {code}"

    return go


WAYS = {"pause": pause, "SIGKILL": kill, "ENOSPC": fail(errno.ENOSPC), "EIO": fail(errno.EIO)}


def outcome(attack: Attack, way: str, at: int, second: int, expected: Left) -> str | None:
    """Return what was wrong after one attack, None if the call was not reached."""
    problem = WAYS[way](attack, at, second)
    if problem is None:
        return None
    contents, names, rows = attack.left()
    if contents != expected[0]:
        problem += f" other bytes: {[name for name in KEPT if contents.get(name) != expected[0].get(name)]}"
    if names != expected[1] and way in ("pause", "SIGKILL"):  # a file that cannot be removed stays
        problem += f" other files: {sorted(set(names) ^ set(expected[1])) or names}"
    intact, damage = verify([attack.out])
    if rows != expected[2] or intact != 1:
        problem += f" the table differs, or damage: {damage}"
    return problem


def main() -> None:
    torch.set_num_threads(1)
    claims.STALE, claims.HEARTBEAT, loop.SAVE_EVERY = LEASE, LEASE / 5, 0.0
    root = Path(sys.argv[1])
    whole = Attack(root / "whole")
    faults.arm(str(whole.out).encode(), 0, 0)
    whole.train()  # here, so that forks find everything imported
    calls, expected = faults.counted(), whole.left()
    wrong, made = [], 0
    for ways, _, which in (word.partition(":") for word in sys.argv[2:]):
        way, _, second = ways.partition("@")
        rest, _, divisor = which.partition("/")
        chosen = range(int(rest) or int(divisor), calls + 1, int(divisor)) if divisor else map(int, which.split(","))
        for at in chosen:
            attack = Attack(root / f"{ways}-{at}")
            try:
                found = outcome(attack, way, at, int(second or 0), expected)
            except Exception as error:
                found = f"{type(error).__name__}: {error}"
            made += found is not None
            wrong += [f"{ways} at call {at}: {found}"] if found else []
            shutil.rmtree(attack.out, ignore_errors=True)
    print(json.dumps({"calls": calls, "made": made, "wrong": wrong}))


if __name__ == "__main__":
    main()

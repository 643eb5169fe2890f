"""Commands that are struck down again and again, and what is left of their runs in the end."""

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from mecam.benchmark.render import table

SHIM = Path(__file__).parent / "shim"
SOURCE = Path(__file__).parents[2] / "src"
KEPT = ("run.json", "records.jsonl", "model.safetensors", "predictions.safetensors", "done.json")
PATIENCE = 300.0  # seconds for one command
WRITING = ("open", "write", "pwrite", "mkdir", "replace", "ftruncate", "link")  # what a full disk refuses


@dataclass(frozen=True)
class Blow:
    """A signal at a moment, or a fault at a call: a kill there, or an error."""

    how: str  # SIGKILL, SIGTERM, SIGINT, or ENOSPC, EIO, EROFS
    moment: float | None = None  # as a share of the time that the command takes undisturbed; None: a fault
    match: str = ""  # a part of the paths that the fault looks at
    calls: tuple[str, ...] | None = None  # the functions of `os` that it counts; None: all that write
    at: int = 1
    alone: bool = False  # a signal to the first process only, not to its workers

    @property
    def kind(self) -> str:
        if self.moment is not None:
            return f"{self.how} at a random moment"
        if self.calls == ("decode",):
            return f"{self.how} in decoding"
        return f"{self.how} in writing {self.match or 'anything'}"


@dataclass
class Whole:
    """What a command leaves undisturbed, and the seconds from its first file to its end."""

    files: dict[str, bytes]
    table: str
    seconds: float


@dataclass
class Tally:
    """What came of the blows, by kind; and runs that were lost (missing, or other bytes) or doubled."""

    landed: Counter[str] = field(default_factory=Counter)
    missed: Counter[str] = field(default_factory=Counter)
    lost: list[str] = field(default_factory=list)
    doubled: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)  # anything else that should not be
    histories: int = 0
    starts: int = 0

    def add(self, other: "Tally") -> None:
        self.landed += other.landed
        self.missed += other.missed
        for name in ("lost", "doubled", "wrong"):
            getattr(self, name).extend(getattr(other, name))
        self.histories += other.histories
        self.starts += other.starts


def undisturbed(words: Sequence[str], out: Path) -> Whole:
    """Run the command to its end."""
    process, begun = _start(words, out, None)
    while not begun.exists() and process.poll() is None:
        time.sleep(0.01)
    start = time.monotonic()
    _, error = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, error
    return Whole(files_of(out), table(out, form="json")[0], time.monotonic() - start)


def suffer(words: Sequence[str], out: Path, blows: Sequence[Blow], whole: Whole) -> Tally:
    """Start the command, strike it, start it again, and so on; then let it end, and compare."""
    tally = Tally(histories=1)
    sessions: list[int] = []
    for blow in blows:
        finished = _finished(out)
        process, begun = _start(words, out, blow if blow.moment is None else None)
        sessions.append(process.pid)
        hit = _strike(process, begun, blow, whole.seconds)
        _, error = process.communicate(timeout=PATIENCE)
        tally.starts += 1
        tally.doubled += _changed(finished, out)
        landed = hit or begun.with_suffix(".hit").exists()
        (tally.landed if landed else tally.missed)[blow.kind] += 1
        tally.wrong += _unspoken(blow, process.returncode, error)
        if process.returncode == 0:  # it is all done
            break
    finished = _finished(out)
    process, _ = _start(words, out, None)
    _, error = process.communicate(timeout=PATIENCE)
    tally.starts += 1
    tally.doubled += _changed(finished, out)
    if process.returncode != 0:
        tally.wrong.append(f"in the end the command says {error[-1000:]!r}")
    for session in sessions:  # workers whose benchmark was killed end by themselves; none stays behind a failure
        _signal(session, signal.SIGKILL, alone=False)
    _compare(tally, out, whole)
    return tally


def _start(words: Sequence[str], out: Path, blow: Blow | None) -> tuple["subprocess.Popen[str]", Path]:
    """The command in a session of its own, and the file that appears when it begins to write."""
    number = sum(1 for _ in out.parent.glob(f"{out.name}-*.asked"))
    begun = out.parent / f"{out.name}-{number}.begun"
    begun.with_suffix(".asked").touch()
    fault = {
        "root": str(out),
        "begun": str(begun),
        "save_every": 0.0,
        "how": blow and blow.how,
        "match": blow.match if blow else "",
        "calls": blow and blow.calls,
        "at": blow.at if blow else 1,
        "lasts": blow is not None and blow.how != "SIGKILL",
        "once": str(begun.with_suffix(".hit")),
    }
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(map(str, (SHIM, SOURCE))),
        "MECAM_FAULT": json.dumps(fault),
        "OMP_NUM_THREADS": "1",
    }
    process = subprocess.Popen(
        [sys.executable, "-m", "mecam.cli", *words, "--out", str(out)],
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    return process, begun


def _strike(process: "subprocess.Popen[str]", begun: Path, blow: Blow, seconds: float) -> bool:
    """Wait for the moment and send the signal; whether the command was still at work. A fault strikes by itself."""
    if blow.moment is None:
        return False
    while not begun.exists() and process.poll() is None:
        time.sleep(0.01)
    moment = time.monotonic() + blow.moment * seconds
    while time.monotonic() < moment and process.poll() is None:
        time.sleep(0.005)
    if process.poll() is not None:
        return False
    _signal(process.pid, signal.Signals[blow.how], alone=blow.alone)
    return True


def _signal(session: int, number: int, *, alone: bool) -> None:
    try:
        (os.kill if alone else os.killpg)(session, number)
    except ProcessLookupError:
        return


def _unspoken(blow: Blow, code: int, error: str) -> list[str]:
    """An error of the file system is told in a sentence."""
    if blow.how.startswith("SIG") or code == 0:
        return []
    spoken = "mecam: " in error and "Traceback" not in error.partition("mecam: ")[0]
    return [] if spoken else [f"{blow.kind}: {error[-1000:]!r}"]


def files_of(out: Path) -> dict[str, bytes]:
    """What is compared of the runs in a folder."""
    return {
        f"{folder.name}/{name}": (folder / name).read_bytes()
        for folder in sorted(out.iterdir())
        for name in KEPT
        if (folder / name).exists()
    }


def _finished(out: Path) -> dict[str, tuple[int, int]]:
    """Identity and time of each result that is there."""
    found = {file: file.stat() for file in sorted(out.glob("*/done.json"))}
    return {file.parent.name: (status.st_ino, status.st_mtime_ns) for file, status in found.items()}


def _changed(before: dict[str, tuple[int, int]], out: Path) -> list[str]:
    """Runs that were finished, and were run again."""
    now = _finished(out)
    return [name for name, identity in before.items() if now.get(name) != identity]


def _compare(tally: Tally, out: Path, whole: Whole) -> None:
    found = files_of(out)
    tally.lost += [name for name in whole.files if found.get(name) != whole.files[name]]
    tally.doubled += [name for name in found if name not in whole.files]
    if table(out, form="json")[0] != whole.table:
        tally.wrong.append("the table differs")

"""timing.json: the training time of a run, added up over its sessions, without those that were killed."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from mecam.progress import Event, Progress
from mecam.runs.files import RunError, write_atomic

TIMING = "timing.json"


class Timing(NamedTuple):
    """Training time of a run, and the steps taken in it."""

    seconds: float
    steps: int


def read_timing(path: Path) -> Timing | None:
    """Return the training time of the run in this folder; None if it was not taken."""
    with suppress(OSError, ValueError, TypeError):
        return Timing(**json.loads((path / TIMING).read_bytes()))
    return None


def add_timing(path: Path, seconds: float, steps: int) -> None:
    """Add the time of a session. A failure to write is ignored: the run is worth more than its time."""
    before = read_timing(path) or Timing(0.0, 0)
    content = json.dumps(Timing(before.seconds + seconds, before.steps + steps)._asdict())
    with suppress(RunError, OSError):
        write_atomic(path / TIMING, content.encode())


@contextmanager
def timed(path: Path, progress: Progress, *, writes: bool) -> Iterator[Progress]:
    """Yield the progress function of a session, which counts its steps. Add its time at the end, however it ends.

    Args:
        writes: whether this process writes the files of the run.
    """
    steps, start = 0, time.monotonic()

    def count(event: Event) -> None:
        nonlocal steps
        steps += event.task == "step"
        progress(event)

    try:
        yield count
    finally:
        if steps and writes:
            add_timing(path, time.monotonic() - start, steps)

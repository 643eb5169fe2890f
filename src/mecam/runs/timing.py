"""timing.json: the training time of a run, added up over its sessions, without those that were killed."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from mecam.progress import Event, Progress
from mecam.storage.files import RunError, Write, read_json, write_atomic

TIMING = "timing.json"


class Timing(NamedTuple):
    """Training time of a run, and the steps taken in it."""

    seconds: float
    steps: int


def read_timing(path: Path) -> Timing | None:
    """Return the training time of the run in this folder; None if it was not taken."""
    with suppress(RunError, TypeError, OverflowError):
        timing = Timing(**read_json(path / TIMING))
        if math.isfinite(timing.seconds) and timing.seconds >= 0 and isinstance(timing.steps, int):
            return timing
    return None


def add_timing(path: Path, seconds: float, steps: int, write: Write = write_atomic) -> None:
    """Add the time of a session. A failure to write is ignored: the run is worth more than its time."""
    before = read_timing(path) or Timing(0.0, 0)
    content = json.dumps(Timing(before.seconds + seconds, before.steps + steps)._asdict())
    with suppress(RunError, OSError):
        write(path / TIMING, content.encode())


@contextmanager
def timed(path: Path, progress: Progress, write: Write | None, *, since: float) -> Iterator[Progress]:
    """Yield the progress function of a session, which counts its steps. Add its time at the end, however it ends.

    Args:
        write: writes the file; None in a process that writes no files of the run.
        since: the start of the session, on the monotonic clock.
    """
    steps = 0

    def count(event: Event) -> None:
        nonlocal steps
        steps += event.task == "step"
        progress(event)

    try:
        yield count
    finally:
        if steps and write is not None:
            add_timing(path, time.monotonic() - since, steps, write)

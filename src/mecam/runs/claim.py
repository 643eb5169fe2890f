"""Who works on a run: a lock on a file in its folder, which the system gives back when its holder dies."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from mecam.runs.atomic import RunError, make_folder

NAME = "claim"


class ClaimedError(RunError):
    """Another process works on this run."""


@contextmanager
def claim(folder: Path) -> Iterator[None]:
    """Work on the run in this folder, alone; ClaimedError if another process does."""
    make_folder(folder)
    descriptor = os.open(folder / NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ClaimedError(f"another process is working on {folder}; wait for it, or stop it first") from None
        yield
    finally:
        os.close(descriptor)

"""Claim a run folder for one process."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from mecam.runs.files import RunError, make_folder, writing
from mecam.storage import claims

NAME = "claim"


class ClaimedError(RunError):
    """Another process works on this run."""


@contextmanager
def claim(folder: Path) -> Iterator[Callable[[], None]]:
    """Hold the claim on a run folder. Raise ClaimedError if another process holds it.

    Call the yielded function before each write: it raises ClaimedError once another process has taken over, as
    happens to a process that was suspended for minutes.
    """
    make_folder(folder)
    try:
        with writing(folder / NAME):
            held = claims.acquire(folder, NAME)
    except claims.HeldError as error:
        raise ClaimedError(f"another process is working on {folder} ({error}); wait for it, or stop it first") from None
    with held:
        yield partial(held.require, folder, ClaimedError)


def is_claimed(folder: Path) -> bool:
    """Return whether a process is working on the run in this folder."""
    return claims.is_held(folder, NAME)

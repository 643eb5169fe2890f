"""Who works on a run: a claim in its folder, which does not outlive its owner."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from mecam import claims
from mecam.runs.atomic import RunError, make_folder, refused

NAME = "claim"


class ClaimedError(RunError):
    """Another process works on this run."""


@contextmanager
def claim(folder: Path) -> Iterator[Callable[[], None]]:
    """Work on the run in this folder, alone; ClaimedError if another process does.

    What is yielded is to be called before anything is written: it raises ClaimedError once another process has taken
    over, as it may from one that was suspended for minutes.
    """
    make_folder(folder)
    try:
        held = claims.acquire(folder, NAME)
    except claims.HeldError as error:
        raise ClaimedError(f"another process is working on {folder} ({error}); wait for it, or stop it first") from None
    except OSError as error:
        raise refused(folder / NAME, error, 0) from error

    def guard() -> None:
        if not held.holds():
            raise ClaimedError(
                f"another process has taken over {folder} while this one showed no life; it goes on there"
            )

    with held:
        yield guard

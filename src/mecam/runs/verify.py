"""Are runs still as they were written? Every byte is read here; tables and models check what they read anyway."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from mecam.runs.atomic import RunError
from mecam.runs.find import find_runs


def verify(paths: Iterable[Path]) -> tuple[int, list[str]]:
    """Return how many of these runs, or runs in these folders, are whole; and what is wrong with the others."""
    whole, damaged = 0, []
    for folder in find_runs(paths):
        try:
            folder.verify()
            whole += 1
        except RunError as error:
            damaged.append(str(error))
    return whole, damaged

"""Are runs still as they were written? Every byte is read here; tables and models check what they read anyway."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from mecam.runs.atomic import RunError
from mecam.runs.folder import RunFolder

PARTS = ("run.json", "done.json", "records.jsonl", "checkpoint")  # any of them makes a folder a run's


def verify(paths: Iterable[Path]) -> tuple[int, list[str]]:
    """How many of these runs, or runs in these folders, are whole; and what is wrong with the others."""
    whole, damaged = 0, []
    for path in paths:
        found = list(_runs(path))
        if not found:
            raise RunError(f"there is no run in {path}; give the folder of a run, or one that holds such folders")
        for folder in found:
            try:
                folder.verify()
                whole += 1
            except RunError as error:
                damaged.append(str(error))
    return whole, damaged


def _runs(path: Path) -> Iterator[RunFolder]:
    folders = [path] if _is_run(path) or not path.is_dir() else sorted(path.iterdir())
    return (RunFolder(folder) for folder in folders if _is_run(folder))


def _is_run(folder: Path) -> bool:
    return any((folder / part).exists() for part in PARTS)

"""Find and verify the run folders behind the paths that a command is given."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from mecam.runs.folder import RunFolder
from mecam.storage.files import RunError

PARTS = ("run.json", "done.json", "records.jsonl", "checkpoint")  # any of them marks the folder of a run


def runs_in(path: Path) -> list[Path]:
    """Return the path itself if it is the folder of a run, otherwise the runs directly in it."""
    if _is_run(path) or not path.is_dir():
        return [path] if _is_run(path) else []
    return sorted(child for child in path.iterdir() if not child.name.startswith(".") and _is_run(child))


def find_runs(paths: Iterable[os.PathLike[str] | str]) -> list[RunFolder]:
    """Return the runs that these paths are or hold, each once.

    The shell expands runs/* to everything in that folder. So a file or folder without a run is skipped if it lies
    beside a run that is also given. Elsewhere it is an error, as is a path that does not exist.
    """
    given = {Path(path): runs_in(Path(path)) for path in paths}
    beside = {run.parent for path, runs in given.items() for run in runs if run == path}
    for path, runs in given.items():
        if not runs and not (path.exists() and path.parent in beside):
            missing = "" if path.exists() else ", which does not exist"
            raise RunError(
                f"there is no run in {path}{missing}; give the folder of a run, or the --out of mecam fit, train or "
                "bench"
            )
    unique: dict[Path, Path] = {}
    for run in (run for runs in given.values() for run in runs):
        unique.setdefault(run.resolve(), run)
    return [RunFolder(run) for run in unique.values()]


def find_run(path: os.PathLike[str] | str) -> RunFolder:
    """Return the run in this folder, or the only one directly below it."""
    first, *others = find_runs([path])
    if others:
        raise RunError(f"{path} holds {len(others) + 1} runs; give one of them, such as {first.path}")
    return first


def verify(paths: Iterable[Path | str]) -> tuple[int, list[str]]:
    """Read every byte of these runs. Return the number of intact runs, and an error message for each other one."""
    runs, problems = find_runs(paths), []
    for run in runs:
        try:
            run.verify()
        except RunError as error:
            problems.append(str(error))
    return len(runs) - len(problems), problems


def _is_run(folder: Path) -> bool:
    return any((folder / part).exists() for part in PARTS)

"""Find the run folders behind the paths that a command is given."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from mecam.runs.atomic import RunError
from mecam.runs.folder import RunFolder

PARTS = ("run.json", "done.json", "records.jsonl", "checkpoint")  # any of them marks the folder of a run


def runs_in(path: Path) -> list[Path]:
    """Return the path itself if it is the folder of a run, otherwise the runs directly in it."""
    if _is_run(path) or not path.is_dir():
        return [path] if _is_run(path) else []
    return sorted(child for child in path.iterdir() if not child.name.startswith(".") and _is_run(child))


def find_runs(paths: Iterable[Path | str]) -> list[RunFolder]:
    """Return the runs that these paths are or hold, each once.

    The shell expands runs/* to everything in that folder. So a file or folder without a run is skipped if it lies
    beside a run that is also given. Elsewhere it is an error, as is a path that does not exist.
    """
    found = {Path(path): runs_in(Path(path)) for path in paths}
    beside = {run.parent for path, runs in found.items() for run in runs if run == path}
    for path, runs in found.items():
        if not runs and not (path.exists() and path.parent in beside):
            missing = "" if path.exists() else ", which does not exist"
            raise RunError(
                f"there is no run in {path}{missing}; give the folder of a run, or a folder of runs such as the --out "
                "of mecam bench"
            )
    unique: dict[Path, Path] = {}
    for run in (run for runs in found.values() for run in runs):
        unique.setdefault(run.resolve(), run)
    return [RunFolder(run) for run in unique.values()]


def find_run(path: Path | str) -> RunFolder:
    """Return the run in this folder, or the only one directly below it."""
    first, *others = find_runs([path])
    if others:
        raise RunError(f"{path} holds {len(others) + 1} runs; give one of them, such as {first.path}")
    return first


def _is_run(folder: Path) -> bool:
    return any((folder / part).exists() for part in PARTS)

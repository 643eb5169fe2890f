"""sessions.jsonl: one line per start or resume of a run, with its first step and its environment.

    {"step": 0, "environment": {"torch": "2.13.0+cpu", ...}, "ended": "SIGTERM after step 300", "checksum": "5d41..."}
    {"step": 301, "environment": {...}, "ended": "done", "checksum": "7d79..."}

A killed session has no `ended`. A killed run has more lines than an undisturbed one, so the file takes no part in what
must be equal byte for byte: done.json says only that it exists. Each checksum covers the run id and the file up to it,
and the last line of a finished run has `ended`, so a changed, missing or foreign line is noticed. Other keys may be
added to a line.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mecam.storage.checksums import seal, unseal
from mecam.storage.files import RunError, Write, read_bytes, write_atomic

CODE = ("mecam", "source", "numpy", "timm", "pytorch_optimizer")  # entries that may change more than the last bits
CIRCUMSTANCES = ("torch", "cuda", "device", "precision", "ranks", "processor", "instruction_set", "threads")


class CircumstancesWarning(UserWarning):
    """A run resumes with other code, or under circumstances that may change the last bits of its results."""


def circumstances(environment: Any) -> dict[str, str]:
    """Select the entries of an environment that may change the last bits of a result.

    Threads count on a CPU only. Missing entries, as in runs of older versions, are omitted.
    """
    values = _selected(environment, CIRCUMSTANCES)
    if values.get("device", "cpu") != "cpu":
        values.pop("threads", None)
    return values


def _selected(environment: Any, names: Sequence[str]) -> dict[str, str]:
    if not isinstance(environment, Mapping):
        return {}
    return {name: str(environment[name]) for name in names if environment.get(name) is not None}


def _differing(every: Sequence[Mapping[str, str]], names: Sequence[str]) -> list[dict[str, str]]:
    changed = [name for name in names if len({one[name] for one in every if name in one}) > 1]
    return [{name: one[name] for name in changed if name in one} for one in every]


def differing(environments: Sequence[Any]) -> list[dict[str, str]]:
    """Return the circumstances in which these environments differ, for each of them."""
    return _differing([circumstances(environment) for environment in environments], CIRCUMSTANCES)


def resumed(before: Any, now: Any) -> CircumstancesWarning | None:
    """Return the warning for a run that resumes in another environment; None if the change cannot matter."""
    code = _differing([_selected(environment, CODE) for environment in (before, now)], CODE)
    there, here = (spelled({**own, **bits}) for own, bits in zip(code, differing([before, now]), strict=True))
    if not there:
        return None
    extent = "results may differ" if any(code) else "results may differ in the last bits"
    return CircumstancesWarning(f"this run was trained with {there} and resumes with {here}: {extent}")


def spelled(circumstances: Mapping[str, str]) -> str:
    return ", ".join(f"{name}={value}" for name, value in circumstances.items())


def used(sessions: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Drop a session if a later one starts at the same step or before it: its steps were repeated."""
    return [
        one for place, one in enumerate(sessions) if all(after["step"] > one["step"] for after in sessions[place + 1 :])
    ]


def read(path: Path, run_id: str, *, finished: bool = False) -> list[dict[str, Any]]:
    """Return the verified sessions of this run; none if there is no file.

    A last line that was cut off is left out. In a finished run it is damage, as is a missing file.
    """
    data = read_bytes(path) if finished or path.exists() else b""
    sessions: list[dict[str, Any]] = []
    before = _seed(run_id)
    lines = data.splitlines(keepends=True)
    if lines and not finished and not lines[-1].endswith(b"\n"):
        lines.pop()
    for number, line in enumerate(lines, start=1):
        try:
            session = unseal(line, before)
        except (ValueError, RecursionError) as error:
            raise RunError(
                f"{path} is damaged at line {number}: {error}, or it is another run's. Remove the file to resume "
                "without the record of earlier sessions"
            ) from error
        if not isinstance(session.get("step"), int):
            raise RunError(f"{path} is damaged at line {number}: it has no step")
        sessions.append(session)
        before += line
    if finished and (not sessions or "ended" not in sessions[-1]):
        raise RunError(f"{path} is damaged: the last session of this finished run is missing")
    return sessions


def append(path: Path, run_id: str, session: Mapping[str, Any], write: Write = write_atomic) -> None:
    """Add a session durably, in place of a last line that was cut off."""
    write(path, _encode(run_id, [*read(path, run_id), session]))


def end(path: Path, run_id: str, reason: str, write: Write = write_atomic) -> bool:
    """Record why the last session ended. Return False if there is none."""
    sessions = read(path, run_id)
    if sessions:
        write(path, _encode(run_id, [*sessions[:-1], {**sessions[-1], "ended": reason}]))
    return bool(sessions)


def _encode(run_id: str, sessions: Sequence[Mapping[str, Any]]) -> bytes:
    data = b""
    for session in sessions:
        data += seal(session, _seed(run_id) + data, indent=False)
    return data


def _seed(run_id: str) -> bytes:
    return f"{run_id}\n".encode()

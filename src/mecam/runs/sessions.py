"""sessions.jsonl: one line per start or resume of a run, with its first step and its environment.

    {"step": 0, "environment": {"torch": "2.13.0+cpu", "threads": 2, ...}, "checksum": "5d41..."}
    {"step": 301, "environment": {...}, "ended": "done", "checksum": "7d79..."}

A killed run has more lines than an undisturbed one, so the file takes no part in what must be equal byte for byte:
done.json says only that it exists. Each checksum covers the run id and the file up to it, and the last line of a
finished run has `ended`, so a changed, missing or foreign line is noticed. Other keys may be added to a line.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mecam.runs.atomic import RunError, digest, read_bytes, write_atomic

CIRCUMSTANCES = ("torch", "cuda", "device", "precision", "ranks", "processor", "instruction_set", "threads")
CHECKSUM = re.compile(rb', "checksum": "([0-9a-f]{64})"}\n\Z')  # how a line ends


class CircumstancesWarning(UserWarning):
    """A run resumes under circumstances that may change the last bits of its results."""


def circumstances(environment: Any) -> dict[str, str]:
    """Select the entries of an environment that may change the last bits of a result.

    Threads count on a CPU only. Missing entries, as in runs of older versions, are omitted.
    """
    if not isinstance(environment, Mapping):
        return {}
    found = {name: str(environment[name]) for name in CIRCUMSTANCES if environment.get(name) is not None}
    if found.get("device", "cpu") != "cpu":
        found.pop("threads", None)
    return found


def differing(environments: Sequence[Any]) -> list[dict[str, str]]:
    """The circumstances in which these environments differ, for each of them; empty where they agree."""
    every = [circumstances(environment) for environment in environments]
    names = [name for name in CIRCUMSTANCES if len({one[name] for one in every if name in one}) > 1]
    return [{name: one[name] for name in names if name in one} for one in every]


def resumed(before: Any, now: Any) -> CircumstancesWarning | None:
    """The warning for a run that was trained in one environment and resumes in another; None if nothing matters."""
    there, here = map(spelled, differing([before, now]))
    if not there:
        return None
    return CircumstancesWarning(
        f"this run was trained with {there} and resumes with {here}: results may differ in the last bits"
    )


def spelled(found: Mapping[str, str]) -> str:
    return ", ".join(f"{name}={value}" for name, value in found.items())


def used(found: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Drop a session if a later one starts at the same step or before it: its steps were repeated."""
    return [one for place, one in enumerate(found) if all(later["step"] > one["step"] for later in found[place + 1 :])]


def read(path: Path, run_id: str, *, finished: bool = False) -> list[dict[str, Any]]:
    """Read the sessions of this run, checked; none if there is no file.

    A last line that was cut off is left out. In a finished run it is damage, as is a missing file.
    """
    data = read_bytes(path) if finished or path.exists() else b""
    found, start = [], 0
    lines = data.splitlines(keepends=True)
    if lines and not finished and not lines[-1].endswith(b"\n"):
        lines.pop()
    for number, line in enumerate(lines, start=1):
        end = CHECKSUM.search(line)
        if end is None or end[1].decode() != digest(_seed(run_id) + data[:start] + line[: end.start()]):
            raise RunError(
                f"{path} is damaged at line {number}: its content does not match its checksum, or it is another "
                "run's. Remove the file to go without the record of earlier sessions"
            )
        found.append(_session(path, number, line))
        start += len(line)
    if finished and (not found or "ended" not in found[-1]):
        raise RunError(f"{path} is damaged: the last session of this finished run is missing")
    return found


def append(path: Path, run_id: str, session: Mapping[str, Any]) -> None:
    """Add a session durably, in place of a last line that was cut off."""
    _write(path, run_id, [*read(path, run_id), session])


def end(path: Path, run_id: str, reason: str) -> bool:
    """Record why the last session ended. Return False if there is none."""
    found = read(path, run_id)
    if found:
        _write(path, run_id, [*found[:-1], {**found[-1], "ended": reason}])
    return bool(found)


def _write(path: Path, run_id: str, found: Sequence[Mapping[str, Any]]) -> None:
    data = b""
    for session in found:
        text = json.dumps(session).encode().removesuffix(b"}")
        data += text + b', "checksum": "' + digest(_seed(run_id) + data + text).encode() + b'"}\n'
    write_atomic(path, data)


def _session(path: Path, number: int, line: bytes) -> dict[str, Any]:
    try:
        session = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise RunError(f"{path} is damaged at line {number}: {error}") from error
    del session["checksum"]
    if not isinstance(session.get("step"), int):
        raise RunError(f"{path} is damaged at line {number}: it has no step")
    return session  # type: ignore[no-any-return]


def _seed(run_id: str) -> bytes:
    return f"{run_id}\n".encode()

"""records.jsonl: one JSON object a line, each with a growing `step`; a kill can cut off the last line only."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from mecam.runs.atomic import RunError, read_bytes, refused, sync_folder, write_all, write_atomic


def read(path: Path) -> list[dict[str, Any]]:
    """The records in a file, none if there is no file; a last line that was cut off is left out."""
    return [record for _, record in _lines(path, _complete(_content(path)))]


def append(path: Path, record: Mapping[str, Any]) -> None:
    """Add a record durably, over a last line that was cut off; nothing of it stays if that fails."""
    line = (json.dumps(record) + "\n").encode()
    kept = _complete(_content(path))
    step = step_of(record)
    last = max((before["step"] for _, before in _lines(path, kept)), default=None)
    if last is not None and step <= last:
        raise RunError(
            f"{path} has step {last} already, and step {step} is to be added. Is another process at work on this run?"
        )
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | getattr(os, "O_BINARY", 0), 0o666)
        try:
            _write_at(descriptor, len(kept), line)
        finally:
            os.close(descriptor)
        if not kept:
            sync_folder(path.parent)
    except OSError as error:
        raise refused(path, error, len(line)) from error


def cut(path: Path, step: int | None) -> None:
    """Keep the records up to this step (none for None), and no last line that was cut off."""
    data = _content(path)
    lines = _lines(path, _complete(data))
    kept = b"".join(line for line, record in lines if step is not None and record["step"] <= step)
    if kept != data:
        write_atomic(path, kept)


def step_of(record: Any) -> int:
    """The record's step; one without is refused."""
    step = record.get("step") if isinstance(record, Mapping) else None
    if not isinstance(step, int) or isinstance(step, bool):
        raise ValueError(f"an object with a whole number 'step' is needed, and here it is {step!r}")
    return step


def _content(path: Path) -> bytes:
    return read_bytes(path) if path.exists() else b""


def _complete(data: bytes) -> bytes:
    """The lines that were written to their end."""
    return data[: data.rfind(b"\n") + 1]


def _lines(path: Path, data: bytes) -> Iterator[tuple[bytes, dict[str, Any]]]:
    for number, line in enumerate(data.splitlines(keepends=True), start=1):
        try:
            record = json.loads(line)
            step_of(record)
        except ValueError as error:
            raise RunError(f"{path} is damaged at line {number}: {error}") from error
        yield line, record


def _write_at(descriptor: int, start: int, line: bytes) -> None:
    try:
        os.ftruncate(descriptor, start)
        os.lseek(descriptor, start, os.SEEK_SET)
        write_all(descriptor, line)
        os.fsync(descriptor)
    except OSError:
        os.ftruncate(descriptor, start)
        raise

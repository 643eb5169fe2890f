"""records.jsonl: one JSON object per line, each with a larger `step`.

A last line that is cut off, as earlier versions could leave it, is ignored.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from mecam.storage.files import RunError, Write, read_bytes, write_atomic


def read(path: Path) -> list[dict[str, Any]]:
    """Return the records in a file; none if there is no file."""
    return [record for _, record in _lines(path, _complete(_content(path)))]


def append(path: Path, record: Mapping[str, Any], write: Write = write_atomic) -> None:
    """Add a record durably. A failure leaves whole lines."""
    step_of(record)
    write(path, _complete(_content(path)) + json.dumps(record).encode() + b"\n")


def cut(path: Path, step: int | None, write: Write = write_atomic) -> None:
    """Keep the records up to this step; none for None."""
    data = _content(path)
    lines = _lines(path, _complete(data))
    kept = b"".join(line for line, record in lines if step is not None and record["step"] <= step)
    if kept != data:
        write(path, kept)


def step_of(record: Any) -> int:
    """Return the record's step. Raise ValueError if it has none."""
    step = record.get("step") if isinstance(record, Mapping) else None
    if not isinstance(step, int) or isinstance(step, bool):
        raise ValueError(f"expected an object with an integer 'step', got {step!r}")
    return step


def _content(path: Path) -> bytes:
    return read_bytes(path) if path.exists() else b""


def _complete(data: bytes) -> bytes:
    """Drop a last line without a line break."""
    return data[: data.rfind(b"\n") + 1]


def _lines(path: Path, data: bytes) -> Iterator[tuple[bytes, dict[str, Any]]]:
    for number, line in enumerate(data.splitlines(keepends=True), start=1):
        try:
            record = json.loads(line)
            step_of(record)
        except (ValueError, RecursionError) as error:
            raise RunError(f"{path} is damaged at line {number}: {error}") from error
        yield line, record

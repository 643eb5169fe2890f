"""The files and folders that this user has opened, with digests of their content.

A run names the path of its data and of its initial weights. Whoever wrote the run chose them, so what reads a run opens
them only if this user has opened the same path with the same content before, or gives the path again.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from mecam.storage.checksums import digest_blocks
from mecam.storage.files import RunError, make_folder, write_atomic


def note(cache: Path, path: Path | str, content: str) -> None:
    """Note that the user opened this path, with content of this digest. A cache that is read-only is fine."""
    with contextlib.suppress(RunError, OSError):
        file = _file(cache, path, content)
        if not file.exists():
            make_folder(file.parent)
            write_atomic(file, b"")


def is_noted(cache: Path, path: Path | str, content: str) -> bool:
    """Return whether the user opened this path with content of this digest."""
    with contextlib.suppress(OSError):
        return _file(cache, path, content).exists()
    return False


def _file(cache: Path, path: Path | str, content: str) -> Path:
    return (
        cache
        / "used"
        / digest_blocks([os.fsencode(os.path.realpath(os.path.expanduser(path))), b"\0", content.encode()])
    )

"""Storage for runs: what fails raises RunError."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

from mecam.storage import checksums, files


class RunError(files.StorageError):
    """A run that cannot be written, read or used. The message names the file and what to do."""


Write = Callable[[Path, bytes], None]  # replaces the content of a file

write_atomic = partial(files.write_atomic, error=RunError)
write_together = partial(files.write_together, error=RunError)
make_folder = partial(files.make_folder, error=RunError)
writing = partial(files.writing, error=RunError)
reading = partial(files.reading, error=RunError)
read_bytes = partial(files.read_bytes, error=RunError)
read_json = partial(files.read_json, error=RunError)
read_sealed = partial(checksums.read_sealed, error=RunError)

"""Claim a run folder for one process, and write the files of the run as its owner."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from mecam.storage import claims
from mecam.storage.files import RunError, discard, make_folder, write_together, writing

NAME = "claim"


class ClaimedError(RunError):
    """Another process works on this run."""


@dataclass(frozen=True)
class Writer:
    """Write and remove files of a run, through the staging folder of a claim if one is given.

    Once another process has taken the claim over, nothing changes any more: writing raises ClaimedError, and removing
    is a no-op. That holds wherever this process was suspended: see mecam.storage.claims.
    """

    held: claims.Claim | None = None

    def write(self, path: Path, data: bytes) -> None:
        """Replace the content of a file, as `write_atomic` does."""
        self.write_together({path: data})

    def write_together(self, contents: Mapping[Path, bytes]) -> None:
        """Replace the content of several files. All are complete before the first is replaced."""
        with self._fenced():
            write_together(contents, staging=None if self.held is None else self.held.staging)

    def remove(self, path: Path) -> None:
        """Remove a file that is not needed; a failure does no harm."""
        if self.held is not None:
            removed = self.held.staging / path.name
            with contextlib.suppress(OSError):
                os.replace(path, removed)
            path = removed
        discard(path)

    def make_folder(self, path: Path) -> None:
        """Create a folder unless it exists."""
        if path.is_symlink():
            raise RunError(f"{path} is a link; a folder is needed there. Remove the link")
        if self.held is None:
            make_folder(path)
        elif not path.is_dir():
            new = self.held.staging / path.name
            with self._fenced(), writing(path):
                with contextlib.suppress(FileExistsError):
                    os.mkdir(new)
                os.rename(new, path)

    @contextlib.contextmanager
    def _fenced(self) -> Iterator[None]:
        try:
            yield
        except RunError:
            if self.held is not None:
                with contextlib.suppress(OSError):
                    self.held.require(self.held.folder, ClaimedError)
            raise


@contextlib.contextmanager
def claim(folder: Path) -> Iterator[Writer]:
    """Hold the claim on a run folder. Raise ClaimedError if another process holds it. Yield what writes its files."""
    make_folder(folder)
    try:
        with writing(folder / NAME):
            held = claims.acquire(folder, NAME)
    except claims.HeldError as error:
        raise ClaimedError(f"another process is working on {folder} ({error}); wait for it, or stop it first") from None
    with held:
        yield Writer(held)


def is_claimed(folder: Path) -> bool:
    """Return whether a process is working on the run in this folder."""
    return claims.is_held(folder, NAME)

"""Write a folder that several processes may want, and publish it by one rename.

Each writer has a folder of its own, .<name>.packing-<token>, beside the place of the result. No other process writes
there. The rename that publishes its result fails where a finished folder is. A writer that takes over first moves the
folders of earlier writers into its own, from where they can no longer be published; it copies what is complete.

So a process that was suspended, and wakes when others have taken over, writes to files that nobody opens. The claim
on the place saves double work. Nothing else depends on it, and no locks of the operating system are needed.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import secrets
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from mecam.storage import claims
from mecam.storage.files import make_folder, sync_folder, writing

INTERVAL = 0.1  # seconds between tries to claim the place


@contextlib.contextmanager
def private_folder(place: Path, *, waiting: Callable[[], object] = lambda: None) -> Iterator[Path]:
    """Yield a new folder for what will be published at `place`, with the folders of earlier writers inside.

    `waiting` is called repeatedly while another process has the claim. On success the folder is removed; after an
    error it is kept for the next writer. If another process has taken it over, the error is suppressed: the caller
    looks at `place` and tries again.
    """
    make_folder(place.parent)
    with _claimed(place, waiting):
        work = place.parent / f".{place.name}.packing-{secrets.token_hex(8)}"
        make_folder(work)
        for folder in leftovers(place):
            with contextlib.suppress(OSError):  # its writer has removed it meanwhile
                if folder != work:
                    os.rename(folder, work / folder.name)
        try:
            yield work
        except Exception:  # of any type, where the files of a writer vanish; the caller's next try meets all others
            if work.exists():
                raise
        else:
            shutil.rmtree(work, ignore_errors=True)


def publish(folder: Path, place: Path) -> bool:
    """Move a finished folder to its place, durably. Return False if a folder with content is there."""
    with writing(place):
        sync_folder(folder)
        try:
            os.rename(folder, place)
        except OSError as cause:
            if cause.errno in (errno.EEXIST, errno.ENOTEMPTY):
                return False
            raise
        sync_folder(place.parent)
    return True


def leftovers(place: Path) -> list[Path]:
    """Return the folders of writers of `place`."""
    name = re.compile(rf"\.{re.escape(place.name)}\.packing(-[0-9a-f]{{16}})?")  # 0.1.0 had no token
    return [Path(entry.path) for entry in os.scandir(place.parent) if name.fullmatch(entry.name)]


def sweep(place: Path) -> None:
    """Remove the folders that killed writers left beside a finished folder, if that is allowed."""
    with contextlib.suppress(OSError, claims.HeldError):
        if leftovers(place):
            held = claims.acquire(place.parent, _claim_of(place))
            for folder in leftovers(place):
                shutil.rmtree(folder, ignore_errors=True)
            held.release(remove=True)


@contextlib.contextmanager
def _claimed(place: Path, waiting: Callable[[], object]) -> Iterator[None]:
    while True:
        with writing(place), contextlib.suppress(claims.HeldError):
            held = claims.acquire(place.parent, _claim_of(place))
            break
        waiting()
        time.sleep(INTERVAL)
    try:
        yield
    finally:
        held.release(remove=place.exists())  # a finished folder needs no claim


def _claim_of(place: Path) -> str:
    return f".{place.name}.claim"

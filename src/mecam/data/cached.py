"""Find the packed store of a folder in the cache. The content of the files decides.

A store is found by its listing: the names, sizes and modification times of the files. Files can change and keep all
three. So the cache notes in which state the files were when all were compared with a store: their change times, which
only the file system sets. In a known state, SAMPLE files are compared with the store by the digests of their bytes; in
any other, all of them are. Other content is packed beside the store.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from mecam.data.scan import Scan
from mecam.data.store import Store, available_cores, is_store
from mecam.storage.checksums import digest_blocks
from mecam.storage.files import RunError, write_atomic

SAMPLE = 64  # files that are read at each opening
STATES = 8  # noted per listing: of copies of a folder, and of former contents


@dataclass(frozen=True)
class Found:
    """The store with the content of a folder, or the place for it."""

    path: Path
    listing: Path  # the place for the first store of this listing
    state: str  # of the files before they were read
    changed: Sequence[str] = ()  # images whose files differ from the store so far: the folder must be packed again

    def note(self) -> None:
        """Note that the path is that of the files in this state. A cache that is read-only is fine."""
        states = dict([*_noted(self.listing).items(), (self.state, self.path.name)][-STATES:])
        with contextlib.suppress(RunError, OSError):
            write_atomic(_notes(self.listing), json.dumps(states).encode())


def find(folder: Scan, listing: Path, *, whole: bool = False) -> Found:
    """Return the store of this folder, or where to pack it: `listing`, unless a store with other content is there.

    Args:
        whole: compare all files, also in a known state.
    """
    state = _state(folder)
    if not is_store(listing):
        return Found(listing, listing, state)
    noted = listing.parent / _noted(listing).get(state, "")
    if not whole and is_store(noted):
        names = folder.paths()
        sample = np.linspace(0, len(names) - 1, min(len(names), SAMPLE)).astype(int)
        if not _differing(Store(noted), _digests(folder, [names[place] for place in sample])):
            return Found(noted, listing, state)
    content = _digests(folder, folder.paths())
    known = {path: _differing(Store(path), content) for path in (noted, listing) if is_store(path)}
    other = listing.with_name(f"{listing.name}-{digest_blocks(content.values())[:16]}")
    path = next((path for path, changed in known.items() if not changed), other)
    found = Found(path, listing, state, () if is_store(path) else tuple(next(iter(known.values()))))
    found.note()
    return found


def _differing(store: Store, content: Mapping[str, bytes]) -> list[str]:
    """Return the names of the images whose files have other bytes now; what the store skipped is not compared."""
    packed = store.file_digests()
    return [name for name, digest in content.items() if packed.get(name, digest) != digest]


def _digests(folder: Scan, names: Iterable[str]) -> dict[str, bytes]:
    """Return the digest of each file, as in a store's index; empty for a file that cannot be read."""

    def digest(name: str) -> tuple[str, bytes]:
        with contextlib.suppress(OSError), (folder.root / name).open("rb") as file:
            return name, hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=8)).digest()
        return name, b""

    with ThreadPoolExecutor(available_cores()) as executor:
        return dict(executor.map(digest, names))


def _state(folder: Scan) -> str:
    """Return a digest of the path and of the change times of the files."""
    times = []
    for name in folder.paths():
        with contextlib.suppress(OSError):
            times.append(os.stat(folder.root / name).st_ctime_ns)
    return digest_blocks([os.fsencode(os.path.realpath(folder.root)), np.array(times, dtype=np.int64).tobytes()])


def _notes(listing: Path) -> Path:
    return listing.with_name(f".{listing.name}.states")


def _noted(listing: Path) -> dict[str, str]:
    """Return the name of the store for each state; nothing if the file is missing or damaged."""
    with contextlib.suppress(OSError, ValueError, RecursionError):
        noted = json.loads(_notes(listing).read_bytes())
        if isinstance(noted, dict):
            return {str(state): Path(str(name)).name for state, name in noted.items()}
    return {}

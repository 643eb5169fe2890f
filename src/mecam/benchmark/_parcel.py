"""Send packed data to the nodes of a Ray cluster: once per node, and only to those that do not see it."""

from __future__ import annotations

import contextlib
import fcntl
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from mecam.data.domains import DataError
from mecam.data.open import SHAPES, cache_folder, open_data
from mecam.data.store import DATA, HEADER, INDEX, NAMES, Store, is_store

PIECE = 64 << 20  # bytes of a data set in one Ray object


@dataclass(frozen=True)
class Parcel:
    """A packed data set: its path, and its content if some node does not see that path."""

    path: Path
    fingerprint: str
    pieces: Mapping[str, Sequence[Any]] | None = None  # Ray objects of each file, in order

    @staticmethod
    def of(data: str, **reading: Any) -> Parcel | None:
        """Return the parcel of a data set; None for the embedded set, which every node draws itself."""
        store = None if data == SHAPES else open_data(data, **reading)
        return Parcel(store.path.absolute(), store.fingerprint) if isinstance(store, Store) else None

    def packed(self) -> Parcel:
        """Return the parcel with its content in Ray's object store, which spills to the disk."""
        if self.pieces is not None:
            return self
        import ray

        files = (DATA, INDEX, NAMES, HEADER)
        return replace(self, pieces={name: [ray.put(piece) for piece in _pieces(self.path / name)] for name in files})

    def open(self) -> Store | None:
        """Return the data set on this node; None if it is not there and its content was not sent."""
        with contextlib.suppress(DataError, OSError):
            seen = Store(self.path)
            if seen.fingerprint == self.fingerprint:
                return seen
        stores = cache_folder() / "stores"
        place, unfinished = stores / self.fingerprint, stores / f".{self.fingerprint}.part"
        if is_store(place):
            return Store(place)
        if self.pieces is None:
            return None
        stores.mkdir(parents=True, exist_ok=True)
        with (stores / f".{self.fingerprint}.lock").open("ab") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not is_store(place):  # not written while this process waited
                self._write(unfinished, self.pieces)
                unfinished.rename(place)
        return Store(place)

    def _write(self, folder: Path, files: Mapping[str, Sequence[Any]]) -> None:
        import ray

        shutil.rmtree(folder, ignore_errors=True)  # a killed process may have left it
        folder.mkdir()
        try:
            for name, pieces in files.items():
                with (folder / name).open("wb") as file:
                    for piece in pieces:
                        file.write(ray.get(piece))
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise


def _pieces(file: Path) -> Iterator[bytes]:
    with file.open("rb") as content:
        while piece := content.read(PIECE):
            yield piece

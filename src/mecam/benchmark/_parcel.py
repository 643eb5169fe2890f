"""Send packed data to the nodes of a Ray cluster: once per node, and only to those that do not see it."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from mecam.data.domains import DataError
from mecam.data.open import SHAPES, cache_folder, open_data
from mecam.data.store import DATA, HEADER, INDEX, NAMES, Store, is_store
from mecam.storage import publishing
from mecam.storage.files import writing

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
        place = cache_folder() / "stores" / self.fingerprint
        while not is_store(place):
            if self.pieces is None:
                return None
            with publishing.private_folder(place) as work:
                if not is_store(place):
                    _write(work / "store", self.pieces)
                    if not publishing.publish(work / "store", place) and not is_store(place):
                        raise DataError(f"{place} exists and is not a store; remove it")
        publishing.sweep(place)
        return Store(place)


def _write(folder: Path, files: Mapping[str, Sequence[Any]]) -> None:
    import ray

    with writing(folder):
        folder.mkdir()
        for name, pieces in files.items():
            with (folder / name).open("xb") as file:
                for piece in pieces:
                    file.write(ray.get(piece))
                file.flush()
                os.fsync(file.fileno())


def _pieces(file: Path) -> Iterator[bytes]:
    with file.open("rb") as content:
        while piece := content.read(PIECE):
            yield piece

"""A packed data set on disk, memory-mapped: the reading side.

A store is a folder of four files. `data.bin` holds the images one after the other: uint8 (3, height, width) each in a
store of decoded pixels, the files' own bytes in a store of encoded ones. `index.bin` has a fixed-width entry an image,
domain after domain, and `names.bin` their names; neither is read into memory. `store.json`, the header, has the rest.
All are checksummed. The small ones are checked on opening; of the images, an encoded one whenever it is decoded, pixels
a shard of some megabytes at a time, when one of them is first asked for; all of it by `verify`.

The one place where a store differs from the folder it was packed from: images that are not all of one size, or larger
than 320 pixels, are kept at 320 x 320 (antialiased bilinear, aspect not kept), so that the crop of the augmentation
resamples them a second time. The smallest crop of 70 % of the area and aspect 3/4, sqrt(.7 * .75) = .72 of a side, then
still has 232 pixels, more than the 224 asked for.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from mecam.data.decode import MAX_PIXELS, resample
from mecam.data.domains import DataError

FORMAT, VERSION = "mecam store", 1
HEADER, DATA, INDEX, NAMES = "store.json", "data.bin", "index.bin", "names.bin"
ENTRY = np.dtype(
    [
        ("offset", "<u8"),  # of the image in data.bin
        ("name", "<u8"),  # offset of the name in names.bin
        ("digest", "V8"),  # of the file that the image came from
        ("bytes", "<u4"),
        ("name_bytes", "<u4"),
        ("width", "<u4"),  # of the original image
        ("height", "<u4"),
        ("label", "<u4"),
        ("padding", "<u4"),
    ]
)
BLOCK = 1 << 20
REPACK = "remove the folder and pack the data again"

Mode = Literal["decoded", "encoded"]


@dataclass(frozen=True)
class Skipped:
    """An image that could not be read and was left out."""

    name: str
    reason: str


class Store:
    """A packed data set, a DomainSet. It can be pickled and used after a fork: only its path travels."""

    def __init__(self, path: Path | str, *, threads: int | None = None) -> None:
        """Open the store and check everything but the images; `threads` decode those of an encoded store."""
        self.path = Path(path)
        self.threads = threads
        self._pool: tuple[int, ThreadPoolExecutor] | None = None
        header = _read_header(self.path)
        try:
            self._open(header)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            if isinstance(error, DataError):
                raise
            raise DataError(f"{self.path / HEADER} is damaged ({type(error).__name__}: {error}); {REPACK}") from error

    def _open(self, header: dict[str, Any]) -> None:
        self.name: str = header["name"]
        self.mode: Mode = header["mode"]
        self.domains: tuple[str, ...] = tuple(header["domains"])
        self.classes: tuple[str, ...] = tuple(header["classes"])
        self.size: tuple[int, int] = (int(header["size"][0]), int(header["size"][1]))
        if min(self.size) < 1 or self.size[0] * self.size[1] > MAX_PIXELS:
            raise DataError(
                f"{self.path / HEADER} is refused: images of {self.size[1]} x {self.size[0]} pixels; {REPACK}"
            )
        self.fingerprint: str = header["fingerprint"]
        self.source: str = header["source"]
        self.skipped: tuple[Skipped, ...] = tuple(Skipped(**entry) for entry in header["skipped"])
        self._starts: NDArray[np.int64] = np.cumsum([0, *header["counts"]], dtype=np.int64)
        self._shards: list[tuple[int, str]] = [(int(size), str(digest)) for size, digest in header["shards"]]
        self._ends: NDArray[np.int64] = np.cumsum([size for size, _ in self._shards], dtype=np.int64)
        self._unchecked = np.ones(len(self._shards), dtype=bool)
        _check_size(self.path / DATA, sum(size for size, _ in self._shards))
        for file in (INDEX, NAMES):
            _check_size(self.path / file, int(header[file]["bytes"]))
            if digest_of(read_blocks(self.path / file)) != header[file]["digest"]:
                raise DataError(f"{self.path / file} is damaged: its checksum is not the one in {HEADER}; {REPACK}")
        if int(header[INDEX]["bytes"]) != len(self) * ENTRY.itemsize:
            raise DataError(f"{self.path / HEADER} is damaged: {INDEX} does not have {len(self):,} entries; {REPACK}")

    def __len__(self) -> int:
        """Images in all domains."""
        return int(self._starts[-1])

    def __repr__(self) -> str:
        return f"Store({str(self.path)!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        return _reopen, (self.path, self.threads)

    def labels(self, domain: int) -> NDArray[np.int64]:
        """The class index of each image of the domain."""
        labels: NDArray[np.int64] = self._entries(domain)["label"].astype(np.int64)
        if len(labels) and labels.max() >= len(self.classes):
            raise DataError(
                f"{self.path / INDEX} is damaged: it has labels beyond the {len(self.classes)} classes; {REPACK}"
            )
        return labels

    def aspects(self, domain: int) -> NDArray[np.float32]:
        """Original width / height of each image of the domain."""
        entries = self._entries(domain)
        aspects: NDArray[np.float32] = (entries["width"] / entries["height"]).astype(np.float32)
        return aspects

    def sample_name(self, domain: int, index: int) -> str:
        """Where the image comes from: "photo/dog/0001.jpg"."""
        entries = self._entries(domain)
        entry = entries[_check_indices(np.array([index]), len(entries))[0]]
        start = int(entry["name"])
        return bytes(self._names[start : start + int(entry["name_bytes"])]).decode("utf-8", "surrogateescape")

    def images(self, domain: int, indices: Sequence[int] | NDArray[np.integer]) -> Tensor:
        """uint8 (n, 3, height, width) on the CPU."""
        entries = self._entries(domain)
        rows = _check_indices(np.asarray(indices, dtype=np.int64), len(entries))
        entries = entries[rows]
        if len(rows) and int((entries["offset"] + entries["bytes"]).max()) > (self._ends[-1] if len(self._ends) else 0):
            raise DataError(f"{self.path / INDEX} is damaged: it has images beyond the end of {DATA}; {REPACK}")
        if self.mode == "decoded":
            self._check_shards(entries["offset"])
            pixels = self._data.reshape(-1, 3, *self.size)
            return torch.from_numpy(pixels.take(entries["offset"].astype(np.int64) // pixels[0].size, axis=0))
        out = np.empty((len(rows), 3, *self.size), dtype=np.uint8)

        def fill(position: int) -> None:
            out[position] = self._decode(domain, int(rows[position]), entries[position])

        if len(rows) == 1:
            fill(0)
        else:
            list(self._workers().map(fill, range(len(rows))))
        return torch.from_numpy(out)

    def verify(self) -> None:
        """Read everything and compare it with its checksums; damage is an error that names the file and the images."""
        Store(self.path)
        for shard in range(len(self._shards)):
            self._check_shard(shard)

    def _check_shards(self, offsets: NDArray[np.uint64]) -> None:
        """Check what was not checked yet of the shards that have images at these offsets."""
        if self._unchecked.any():
            shards = np.unique(np.searchsorted(self._ends, offsets.astype(np.int64), side="right"))
            for shard in shards[self._unchecked[shards]].tolist():
                self._check_shard(shard)
                self._unchecked[shard] = False

    def _check_shard(self, shard: int) -> None:
        size, digest = self._shards[shard]
        end = int(self._ends[shard])
        if digest_of(read_blocks(self.path / DATA, end - size, size)) != digest:
            raise DataError(
                f"{self.path / DATA} is damaged between bytes {end - size:,} and {end:,}, in "
                f"{self._images_between(end - size, end)}; {REPACK}"
            )

    def _decode(self, domain: int, index: int, entry: np.void) -> NDArray[np.uint8]:
        start = int(entry["offset"])
        name = f"{self.sample_name(domain, index)} in {self.path / DATA}"
        file = self._data[start : start + int(entry["bytes"])].tobytes()
        if hashlib.blake2b(file, digest_size=8).digest() != entry["digest"].tobytes():
            raise DataError(f"{name} is damaged: it does not match its checksum; {REPACK}")
        return resample(file, name=name, size=self.size).pixels.transpose(2, 0, 1)

    def _images_between(self, start: int, end: int) -> str:
        inside = np.flatnonzero((self._index["offset"] < end) & (self._index["offset"] + self._index["bytes"] > start))
        if not len(inside):
            return "no image that is used"
        first = int(inside[0])
        domain = int(np.searchsorted(self._starts, first, side="right")) - 1
        return f"{len(inside)} images from {self.sample_name(domain, first - int(self._starts[domain]))} on"

    def _entries(self, domain: int) -> NDArray[np.void]:
        _check_indices(np.array([domain]), len(self.domains))
        return self._index[self._starts[domain] : self._starts[domain + 1]]

    @cached_property
    def _index(self) -> NDArray[np.void]:
        return np.asarray(np.memmap(self.path / INDEX, dtype=ENTRY, mode="r"))

    @cached_property
    def _names(self) -> NDArray[np.uint8]:
        return np.asarray(np.memmap(self.path / NAMES, dtype=np.uint8, mode="r"))

    @cached_property
    def _data(self) -> NDArray[np.uint8]:
        return np.asarray(np.memmap(self.path / DATA, dtype=np.uint8, mode="r"))

    def _workers(self) -> ThreadPoolExecutor:
        """Threads of this process: a fork leaves the parent's behind."""
        if self._pool is None or self._pool[0] != os.getpid():
            self._pool = os.getpid(), ThreadPoolExecutor(self.threads or available_cores())
        return self._pool[1]


def is_store(path: Path) -> bool:
    return (path / HEADER).is_file()


def fit(pixels: NDArray[np.uint8], size: tuple[int, int], interpolation: str = "bilinear") -> NDArray[np.uint8]:
    """(height, width, 3) of this size: as it is, or resampled by Pillow's filter of that name, which is antialiased."""
    height, width = size
    if pixels.shape[:2] == size:
        return pixels
    return np.asarray(Image.fromarray(pixels).resize((width, height), Image.Resampling[interpolation.upper()]))


def available_cores() -> int:
    affinity = getattr(os, "sched_getaffinity", None)  # Linux
    return len(affinity(0)) if affinity else os.cpu_count() or 1


def seal(header: dict[str, Any]) -> bytes:
    """The header's bytes, with a checksum of its own."""
    return json.dumps({**header, "checksum": digest_of([_canonical(header)])}, indent=1).encode() + b"\n"


def read_blocks(path: Path, offset: int = 0, size: int | None = None) -> Iterator[bytes]:
    """The file, or `size` bytes of it from `offset` on, a block at a time."""
    left = path.stat().st_size - offset if size is None else size
    with path.open("rb") as file:
        file.seek(offset)
        while left > 0 and (block := file.read(min(BLOCK, left))):
            left -= len(block)
            yield block


def digest_of(blocks: Iterable[bytes]) -> str:
    digest = hashlib.blake2b(digest_size=16)
    for block in blocks:
        digest.update(block)
    return digest.hexdigest()


def _canonical(header: dict[str, Any]) -> bytes:
    return json.dumps(header, sort_keys=True, separators=(",", ":")).encode()


def _read_header(folder: Path) -> dict[str, Any]:
    path = folder / HEADER
    try:
        header = json.loads(path.read_bytes())
    except OSError as error:
        raise DataError(f"{folder} is not a store: {path} cannot be read ({error.strerror}); pack a folder") from error
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path} is damaged: not JSON ({error}); {REPACK}") from error
    if not isinstance(header, dict) or header.get("format") != FORMAT:
        raise DataError(f"{folder} is not a store: {path} was not written by mecam; give a folder that mecam packed")
    if header.get("version") != VERSION:
        raise DataError(
            f"{path} is of version {header.get('version')!r} and this mecam reads version {VERSION}; {REPACK}, or use "
            "the mecam that packed it"
        )
    checksum = header.pop("checksum", None)
    if checksum != digest_of([_canonical(header)]):
        raise DataError(f"{path} is damaged: its checksum is wrong; {REPACK}")
    return header


def _check_size(path: Path, expected: int) -> None:
    try:
        found = path.stat().st_size
    except OSError as error:
        raise DataError(f"{path} is missing from the store ({error.strerror}); {REPACK}") from error
    if found != expected:
        raise DataError(f"{path} is damaged: {found:,} bytes instead of the {expected:,} in {HEADER}; {REPACK}")


def _reopen(path: Path, threads: int | None) -> Store:
    return Store(path, threads=threads)


def _check_indices(indices: NDArray[np.int64], count: int) -> NDArray[np.int64]:
    if indices.ndim != 1:
        raise IndexError(f"indices must be a list of integers, got an array of shape {indices.shape}")
    if len(indices) and not 0 <= indices.min() <= indices.max() < count:
        raise IndexError(f"indices must be in 0 .. {count - 1}, got {indices.min()} .. {indices.max()}")
    return indices

"""Read a packed data set from disk, memory-mapped.

A store is a folder of four files. `data.bin` holds the images one after the other: uint8 (3, height, width) each in a
decoded store, the files' own bytes in an encoded one. `index.bin` has a fixed-width entry per image, domain by domain,
`names.bin` their names; neither is read into memory. `store.json`, the header, has the rest. All are checksummed. The
small files are verified on opening, encoded images whenever they are decoded, pixels in shards of some megabytes when
one of their images is first read, everything by `verify`.

A store differs from the folder it was packed from in one way: where the images of a domain differ in size, or are
larger than 320 pixels, they are kept at 320 x 320 (antialiased bilinear, aspect not kept), so the crop of the
augmentation resamples them a second time. The smallest crop of 70 % of the area and aspect 3/4, sqrt(.7 * .75) = .72 of
a side, still has 232 pixels, more than the 224 needed. Where domains then differ, all images are read at 320 x 320; a
run reads them at the size of its source domains if these agree, so that the target has no part in it.
"""

from __future__ import annotations

import hashlib
import json
import mmap
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, ImageOps
from torch import Tensor

from mecam.data.decode import MAX_PIXELS, Room, resample
from mecam.data.domains import DataError, DomainSet
from mecam.preprocessing import Resize
from mecam.storage.checksums import digest_blocks, read_blocks
from mecam.storage.files import RunError, read_json

FORMAT, VERSION, VERSION_OF_SIZES = "mecam store", 1, 2  # 2: domains differ in the size of their images
HEADER, DATA, INDEX, NAMES = "store.json", "data.bin", "index.bin", "names.bin"
ENTRY = np.dtype(
    [
        ("offset", "<u8"),  # where the image starts in data.bin
        ("name", "<u8"),  # where the name starts in names.bin
        ("digest", "V8"),  # the image file's
        ("bytes", "<u4"),
        ("name_bytes", "<u4"),
        ("width", "<u4"),  # the original image's
        ("height", "<u4"),
        ("label", "<u4"),
        ("padding", "<u4"),
    ]
)
REPACK = "remove the folder and pack the data again"

Mode = Literal["decoded", "encoded"]


@dataclass(frozen=True)
class Skipped:
    """An image that could not be read and was left out."""

    name: str
    reason: str


class Store:
    """A packed DomainSet. It can be pickled, as its path, and used after a fork."""

    def __init__(self, path: Path | str, *, threads: int | None = None, size: tuple[int, int] | None = None) -> None:
        """Open the store and verify all but the images. An encoded store is decoded by `threads` threads.

        Images are returned with `size` pixels, by default those of the header.
        """
        self.path = Path(path)
        self.threads = threads
        self._pool: tuple[int, ThreadPoolExecutor] | None = None
        header = _read_header(self.path)
        try:
            self._open(header, size)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            if isinstance(error, DataError):
                raise
            raise _damage_error(self.path / HEADER, f"{type(error).__name__}: {error}") from error

    def _open(self, header: dict[str, Any], size: tuple[int, int] | None) -> None:
        self.name: str = header["name"]
        self.mode: Mode = header["mode"]
        self.domains: tuple[str, ...] = tuple(header["domains"])
        self.classes: tuple[str, ...] = tuple(header["classes"])
        self.own_size = _size(header["size"])
        self.size: tuple[int, int] = size or self.own_size
        self.sizes = tuple(map(_size, header.get("sizes", [self.own_size] * len(self.domains))))  # stored, by domain
        for height, width in (self.size, *self.sizes):
            if min(height, width) < 1 or height * width > MAX_PIXELS:
                raise _damage_error(self.path / HEADER, f"images of {width} x {height} pixels")
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
            if digest_blocks(read_blocks(self.path / file)) != header[file]["digest"]:
                raise _damage_error(self.path / file, f"its content does not match its checksum in {HEADER}")
        if int(header[INDEX]["bytes"]) != len(self) * ENTRY.itemsize:
            raise _damage_error(self.path / HEADER, f"{INDEX} does not have {len(self):,} entries")
        self._index_file = _Mapped(self.path / INDEX, ENTRY)
        self._names = _Mapped(self.path / NAMES, np.dtype(np.uint8))
        self._data = _Mapped(self.path / DATA, np.dtype(np.uint8))

    @property
    def _index(self) -> NDArray[np.void]:
        return self._index_file.array()

    def __len__(self) -> int:
        """Return the number of images in all domains."""
        return int(self._starts[-1])

    def __repr__(self) -> str:
        return f"Store({str(self.path)!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(Store, threads=self.threads, size=self.size), (self.path,)

    def labels(self, domain: int) -> NDArray[np.int64]:
        """Return the class index of each image of the domain."""
        labels: NDArray[np.int64] = self._entries(domain)["label"].astype(np.int64)
        if len(labels) and labels.max() >= len(self.classes):
            raise _damage_error(self.path / INDEX, f"it has labels beyond the {len(self.classes)} classes")
        return labels

    def aspects(self, domain: int) -> NDArray[np.float32]:
        """Return the original width / height of each image of the domain."""
        entries = self._entries(domain)
        return (entries["width"] / entries["height"]).astype(np.float32)  # type: ignore[no-any-return]

    def digests(self, domain: int) -> NDArray[np.uint64]:
        """Return a digest of the file of each image of the domain."""
        return np.ascontiguousarray(self._entries(domain)["digest"]).view(np.uint64)

    def sample_name(self, domain: int, index: int) -> str:
        """Return the path of the image in its folder, such as "photo/dog/0001.jpg"."""
        entries = self._entries(domain)
        entry = entries[_check_indices(np.array([index]), len(entries))[0]]
        start = int(entry["name"])
        return bytes(self._names.array()[start : start + int(entry["name_bytes"])]).decode("utf-8", "surrogateescape")

    def file_digests(self) -> dict[str, bytes]:
        """Return the digest (blake2b, 8 bytes) of the file that each image was packed from, by the image's name."""
        index, content = self._index, self._names.array()
        spans = zip(index["name"].tolist(), (index["name"] + index["name_bytes"]).tolist(), strict=True)
        names = (bytes(content[start:end]).decode("utf-8", "surrogateescape") for start, end in spans)
        return dict(zip(names, map(bytes, index["digest"]), strict=True))

    def images(self, domain: int, indices: Sequence[int] | NDArray[np.integer]) -> Tensor:
        """Return uint8 (n, 3, height, width) on the CPU."""
        entries = self._entries(domain)
        rows = _check_indices(np.asarray(indices, dtype=np.int64), len(entries))
        entries = entries[rows]
        if len(rows) and int((entries["offset"] + entries["bytes"]).max()) > (self._ends[-1] if len(self._ends) else 0):
            raise _damage_error(self.path / INDEX, f"it has images beyond the end of {DATA}")
        stored = self.sizes[domain]
        if self.mode == "decoded" and len(rows):
            self._check_shards(entries["offset"])
            start, each = int(self._entries(domain)["offset"][0]), 3 * stored[0] * stored[1]
            data = self._data.array()
            pixels = data[start : start + (len(data) - start) // each * each].reshape(-1, 3, *stored)
            taken = pixels.take((entries["offset"].astype(np.int64) - start) // each, axis=0)
            if stored == self.size:
                return torch.from_numpy(taken)
            return torch.from_numpy(np.stack([self._fitted(image) for image in taken]))
        decode, arguments = partial(self._decode, domain, Room()), (rows.tolist(), entries)
        decoded = map(decode, *arguments) if len(rows) == 1 else self._workers().map(decode, *arguments)
        out = np.empty((len(rows), 3, *self.size), dtype=np.uint8)
        for place, pixels in enumerate(decoded):
            out[place] = pixels
        return torch.from_numpy(out)

    def verify(self) -> None:
        """Compare everything with its checksums. A DataError names the damaged file and images."""
        Store(self.path)
        for shard in range(len(self._shards)):
            self._check_shard(shard)

    def _check_shards(self, offsets: NDArray[np.uint64]) -> None:
        """Verify the shards that have images at these offsets, each once."""
        if self._unchecked.any():
            shards = np.unique(np.searchsorted(self._ends, offsets.astype(np.int64), side="right"))
            for shard in shards[self._unchecked[shards]].tolist():
                self._check_shard(shard)
                self._unchecked[shard] = False

    def _check_shard(self, shard: int) -> None:
        size, digest = self._shards[shard]
        end = int(self._ends[shard])
        if digest_blocks(read_blocks(self.path / DATA, end - size, size)) != digest:
            images = self._images_between(end - size, end)
            raise _damage_error(self.path / DATA, f"bytes {end - size:,} to {end:,}, {images}")

    def _decode(self, domain: int, room: Room, index: int, entry: np.void) -> NDArray[np.uint8]:
        start = int(entry["offset"])
        name = f"{self.sample_name(domain, index)} in {self.path / DATA}"
        file = self._data.array()[start : start + int(entry["bytes"])].tobytes()
        if hashlib.blake2b(file, digest_size=8).digest() != entry["digest"].tobytes():
            raise _damage_error(name, "its content does not match its checksum")
        with room.taken(int(entry["width"]) * int(entry["height"])):
            resampled = resample(file, name=name, size=self.sizes[domain])
        return self._fitted(resampled.pixels.transpose(2, 0, 1))

    def _fitted(self, pixels: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """Return (3, height, width) pixels in the size of this store."""
        return fit(pixels.transpose(1, 2, 0), self.size).transpose(2, 0, 1)

    def _images_between(self, start: int, end: int) -> str:
        index = self._index
        inside = np.flatnonzero((index["offset"] < end) & (index["offset"] + index["bytes"] > start))
        if not len(inside):
            return "no image in use"
        first = int(inside[0])
        domain = int(np.searchsorted(self._starts, first, side="right")) - 1
        return f"{len(inside)} images from {self.sample_name(domain, first - int(self._starts[domain]))} on"

    def _entries(self, domain: int) -> NDArray[np.void]:
        _check_indices(np.array([domain]), len(self.domains))
        return self._index[self._starts[domain] : self._starts[domain + 1]]

    def _workers(self) -> ThreadPoolExecutor:
        """Return the threads of this process: a fork does not copy the parent's."""
        if self._pool is None or self._pool[0] != os.getpid():
            self._pool = os.getpid(), ThreadPoolExecutor(self.threads or available_cores())
        return self._pool[1]


class _Mapped:
    """A file as an array, not read into memory."""

    def __init__(self, path: Path, dtype: np.dtype[Any]) -> None:
        self._path = path
        with path.open("rb") as file:
            self._mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        self._array: NDArray[Any] = np.frombuffer(self._mapped, dtype)

    def array(self) -> NDArray[Any]:
        """Return the array; a DataError if the file was truncated, which would end the process with SIGBUS."""
        if self._mapped.size() < len(self._mapped):
            raise _damage_error(self._path, "it was truncated while it was in use")
        return self._array


def for_sources(data: DomainSet, sources: Sequence[int]) -> DomainSet:
    """Return the data as a run with these source domains reads it: the size of its images depends on them alone.

    Images have the size of these domains, or that of the store's header if they differ in theirs.
    """
    if not isinstance(data, Store):
        return data
    sizes = {data.sizes[domain] for domain in sources}
    size = sizes.pop() if len(sizes) == 1 else data.own_size
    return data if size == data.size else Store(data.path, threads=data.threads, size=size)


def _size(values: Sequence[Any]) -> tuple[int, int]:
    height, width = values
    return int(height), int(width)


def is_store(path: Path) -> bool:
    return (path / HEADER).is_file()


def fit(
    pixels: NDArray[np.uint8],
    size: tuple[int, int],
    interpolation: str = "bilinear",
    resize: Resize = "squash",
) -> NDArray[np.uint8]:
    """Resize (height, width, 3) pixels, unless they have this size, by Pillow's antialiased filter of that name.

    `resize` as in `Preprocessing`.
    """
    height, width = size
    if pixels.shape[:2] == size:
        return pixels
    image, kernel = Image.fromarray(pixels), Image.Resampling[interpolation.upper()]
    if resize == "letterbox":
        return np.asarray(ImageOps.pad(image, (width, height), kernel))
    if resize == "crop":
        side = min(image.size)
        left, top = ((length - side) // 2 for length in image.size)
        image = image.crop((left, top, left + side, top + side))
    return np.asarray(image.resize((width, height), kernel))


def available_cores() -> int:
    affinity = getattr(os, "sched_getaffinity", None)  # Linux
    return len(affinity(0)) if affinity else os.cpu_count() or 1


def seal(header: dict[str, Any]) -> bytes:
    """Encode the header with its checksum."""
    return json.dumps({**header, "checksum": _checksum(header)}, indent=1).encode() + b"\n"


def _checksum(header: dict[str, Any]) -> str:
    return digest_blocks([json.dumps(header, sort_keys=True, separators=(",", ":")).encode()])


def _read_header(folder: Path) -> dict[str, Any]:
    path = folder / HEADER
    if not is_store(folder):
        raise DataError(f"{folder} is not a store: there is no {path}; pack a folder")
    try:
        header = read_json(path)
    except RunError as error:
        raise DataError(f"{error}; {REPACK}") from error
    if header.get("format") != FORMAT:
        raise DataError(f"{folder} is not a store: {path} was not written by mecam; give a folder that mecam packed")
    if header.get("version") not in (VERSION, VERSION_OF_SIZES):
        raise DataError(
            f"{path} has version {header.get('version')!r} and this mecam reads versions {VERSION} and "
            f"{VERSION_OF_SIZES}; {REPACK}, or use the mecam that packed it"
        )
    if header.pop("checksum", None) != _checksum(header):
        raise _damage_error(path, "its content does not match its checksum")
    return header


def _check_size(path: Path, expected: int) -> None:
    if not path.exists():
        raise DataError(f"{path} is missing from the store; {REPACK}")
    if (size := path.stat().st_size) != expected:
        raise _damage_error(path, f"{size:,} bytes instead of the {expected:,} in {HEADER}")


def _damage_error(path: Path | str, reason: str) -> DataError:
    return DataError(f"{path} is damaged: {reason}; {REPACK}")


def _check_indices(indices: NDArray[np.int64], count: int) -> NDArray[np.int64]:
    if indices.ndim != 1:
        raise IndexError(f"indices must be a list of integers, got an array of shape {indices.shape}")
    if len(indices) and not 0 <= indices.min() <= indices.max() < count:
        raise IndexError(f"indices must be in 0 .. {count - 1}, got {indices.min()} .. {indices.max()}")
    return indices

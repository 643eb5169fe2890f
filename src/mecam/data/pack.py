"""A folder of images, or any data set, into a store: decode once, then read as fast as the disk.

Threads decode (Pillow lets go of the interpreter meanwhile) and write in parallel, in little memory. A store is there
in full or not at all; after a kill or a full disk the same call goes on where it was; a second process that packs the
same data waits for the first. What is stored, and the one place where it differs from the folder: `mecam.data.store`.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from mecam.data._writing import OnError, Picture, Plan, Progress, Report, Unreadable, write
from mecam.data.decode import FORMATS, decode
from mecam.data.domains import DataError, DomainSet
from mecam.data.folder import Scan, scan
from mecam.data.store import Mode, Store, available_cores, fit

__all__ = ["PIXEL_LIMIT", "SIDE", "OnError", "Progress", "Report", "listing_digest", "pack", "pack_set"]

SIDE = 320  # pixels of a side where images differ in size or are larger
PIXEL_LIMIT = 8 << 30  # bytes of pixels above which "auto" stores the files' own bytes
PIXELS_AT_ONCE = 16 << 20  # of the images that are being decoded; a larger one is decoded alone
MEASURED_AT_ONCE = 512
ORIENTATION, ON_ITS_SIDE = 0x0112, (5, 6, 7, 8)  # the EXIF tag, and its values that swap width and height


def pack(
    source: Scan | Path | str,
    out: Path | str,
    *,
    workers: int | None = None,
    mode: Mode | Literal["auto"] = "auto",
    on_error: OnError = "refuse",
    side: int = SIDE,
    pixel_limit: int = PIXEL_LIMIT,
    name: str | None = None,
    progress: Report | None = None,
) -> Store:
    """The store at `out` of root/<domain>/<class>/<image>; if it is there already, nothing is done.

    Args:
        source: the folder, or what `mecam.data.folder.scan` found in it.
        workers: threads that decode; all cores if not given.
        mode: "decoded" stores pixels; "encoded" the files' own bytes, decoded whenever an image is asked for; "auto"
            decides by `pixel_limit`, in bytes of pixels.
        on_error: what images that cannot be read do. "refuse": one error that names them all; "skip": they are left out
            and listed in the store's `skipped`. What was packed before a refusal is kept: skipping after it is quick.
        side: images that differ in size, or are larger, are stored with side x side pixels.
        name: of the data set; the folder's if not given.
        progress: called about ten times a second, from the calling thread.
    """
    if mode not in ("auto", "decoded", "encoded"):
        raise ValueError(f'mode must be "auto", "decoded" or "encoded", got {mode!r}')
    if on_error not in ("refuse", "skip"):
        raise ValueError(f'on_error must be "refuse" or "skip", got {on_error!r}')
    report = progress or _silent
    threads = available_cores() if workers is None else workers
    found = source if isinstance(source, Scan) else scan(Path(source))
    listing = _Listing.of(found)
    names = [file for files in found.files for file in files]
    size = _common_size(found.root, names, side, threads, report) or (side, side)
    pixels = 3 * size[0] * size[1]
    if mode == "auto":
        mode = "decoded" if len(names) * pixels <= pixel_limit else "encoded"
    name = name or found.name
    plan = Plan(
        name=name,
        domains=found.domains,
        classes=found.classes,
        counts=tuple(map(len, found.files)),
        names=names,
        labels=np.concatenate([found.labels(domain) for domain in range(len(found.domains))]),
        mode=mode,
        size=size,
        lengths=np.full(len(names), pixels) if mode == "decoded" else listing.sizes.clip(min=0),
        source=f"{listing.digest} {mode} {size[0]}x{size[1]} {name}",
        read=_Reader(found.root, names, listing.sizes, size, mode).read,
    )
    return write(plan, Path(out), on_error=on_error, threads=threads, report=report)


def pack_set(data: DomainSet, out: Path | str) -> Store:
    """A store of the pixels of a data set that is not a folder; its fingerprint stays."""
    labels = [data.labels(domain) for domain in range(len(data.domains))]
    aspects = [data.aspects(domain) for domain in range(len(data.domains))]
    places = [(domain, image) for domain, of_domain in enumerate(labels) for image in range(len(of_domain))]

    def read(image: int) -> Picture:
        domain, index = places[image]
        content = data.images(domain, [index]).numpy().tobytes()
        height = 1 << 16  # an original size that has the aspect
        width = round(height * float(aspects[domain][index]))
        return Picture(content, width, height, hashlib.blake2b(content, digest_size=8).digest())

    plan = Plan(
        name=data.name,
        domains=data.domains,
        classes=data.classes,
        counts=tuple(map(len, labels)),
        names=[data.sample_name(*place) for place in places],
        labels=np.concatenate(labels),
        mode="decoded",
        size=data.size,
        lengths=np.full(len(places), 3 * data.size[0] * data.size[1]),
        source=f"{data.fingerprint} {data.name}",
        read=read,
        fingerprint=data.fingerprint,
    )
    return write(plan, Path(out), on_error="refuse", threads=1, report=_silent)


def listing_digest(found: Scan) -> str:
    """Of the names, sizes and modification times of a folder's images: changes when the folder does."""
    return _Listing.of(found).digest


@dataclass(frozen=True)
class _Listing:
    digest: str
    sizes: NDArray[np.int64]  # of the files in bytes; -1: unknown

    @classmethod
    def of(cls, found: Scan) -> _Listing:
        digest, sizes = hashlib.blake2b(repr((found.domains, found.classes)).encode(), digest_size=16), []
        for file in (file for files in found.files for file in files):
            size, changed = -1, 0
            with contextlib.suppress(OSError):  # reading the file will tell what is wrong with it
                status = os.stat(found.root / file)
                size, changed = status.st_size, status.st_mtime_ns
            sizes.append(size)
            digest.update(f"{file}\0{size}\0{changed}\n".encode("utf-8", "surrogateescape"))
        return cls(digest.hexdigest(), np.array(sizes, dtype=np.int64))


class _Reader:
    """Files to pictures; for all threads, so that large images do not come at the same time."""

    def __init__(
        self, root: Path, names: Sequence[str], sizes: NDArray[np.int64], size: tuple[int, int], mode: Mode
    ) -> None:
        self._root, self._names, self._sizes, self._size, self._mode = root, names, sizes, size, mode
        self._room = _Room(PIXELS_AT_ONCE)

    def read(self, image: int) -> Picture:
        name = self._names[image]
        try:
            file = (self._root / name).read_bytes()
        except OSError as error:
            raise Unreadable(f"{name} cannot be read: {error.strerror}") from error
        if len(file) != self._sizes[image]:
            raise DataError(f"{self._root / name} changed while it was packed; pack again when nothing changes it")
        try:
            with self._room.taken(_pixels(file)):
                pixels = decode(file, name=name)
                height, width = pixels.shape[:2]
                content = fit(pixels, self._size).transpose(2, 0, 1).tobytes() if self._mode == "decoded" else file
        except DataError as error:
            raise Unreadable(str(error)) from error
        return Picture(content, width, height, hashlib.blake2b(file, digest_size=8).digest())


class _Room:
    """An amount that threads share, and wait for."""

    def __init__(self, amount: int) -> None:
        self._amount = self._free = amount
        self._changed = threading.Condition()

    @contextlib.contextmanager
    def taken(self, amount: int) -> Iterator[None]:
        amount = min(amount, self._amount)
        with self._changed:
            self._changed.wait_for(lambda: self._free >= amount)
            self._free -= amount
        try:
            yield
        finally:
            with self._changed:
                self._free += amount
                self._changed.notify_all()


def _common_size(root: Path, names: Sequence[str], side: int, threads: int, report: Report) -> tuple[int, int] | None:
    """Height and width of all the images; None where they differ or are larger than `side`."""
    common: set[tuple[int, int]] = set()
    with ThreadPoolExecutor(threads) as executor:
        for start in range(0, len(names), MEASURED_AT_ONCE):
            report(Progress("measuring", start, len(names)))
            measured = executor.map(_measure, (root / name for name in names[start : start + MEASURED_AT_ONCE]))
            common.update(size for size in measured if size is not None)
            if len(common) > 1 or any(max(size) > side for size in common):
                return None
    return next(iter(common), None)


def _measure(path: Path) -> tuple[int, int] | None:
    """Height and width as decoding will find them, from the file's first bytes; None: it will fail."""
    try:
        with Image.open(path, formats=FORMATS) as image:
            width, height = image.size
            return (width, height) if image.getexif().get(ORIENTATION) in ON_ITS_SIDE else (height, width)
    except Exception:  # decoders raise anything on damaged files
        return None


def _pixels(file: bytes) -> int:
    try:
        with Image.open(BytesIO(file), formats=FORMATS) as image:
            return image.width * image.height
    except Exception:
        return 0


def _silent(_: Progress) -> None: ...

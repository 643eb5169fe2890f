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
from pathlib import Path
from typing import IO, Literal

import numpy as np
from numpy.typing import NDArray

from mecam.data._writing import OnError, Picture, Plan, Progress, Report, Unreadable, write
from mecam.data.decode import Resampled, measure, resample
from mecam.data.domains import DataError, DomainSet
from mecam.data.folder import Scan, hidden, scan
from mecam.data.store import Mode, Skipped, Store, available_cores

__all__ = ["PIXEL_LIMIT", "SIDE", "OnError", "Progress", "Report", "listing_digest", "pack", "pack_set", "unreadable"]

SIDE = 320  # pixels of a side where images differ in size or are larger
PIXEL_LIMIT = 8 << 30  # bytes of pixels above which "auto" stores the files' own bytes
PIXELS_AT_ONCE = 16 << 20  # of the images that are being decoded; a larger one is decoded alone
MEASURED_AT_ONCE = 512


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
    if side < 1:
        raise ValueError(f"side must be at least 1 pixel, got {side}")
    if workers is not None and workers < 1:
        raise ValueError(f"workers must be at least 1, got {workers}")
    report = progress or _silent
    threads = available_cores() if workers is None else workers
    found = source if isinstance(source, Scan) else scan(Path(source))
    _refuse_inside(Path(out), found.root)
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
        read=_Reader(found.root, names, listing, size, mode).read,
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


def unreadable(found: Scan, *, workers: int | None = None, progress: Report | None = None) -> tuple[Skipped, ...]:
    """The images that `pack` would refuse: each is decoded as it does, and nothing is written."""
    report, threads = progress or _silent, available_cores() if workers is None else workers
    names = [file for files in found.files for file in files]
    size = _common_size(found.root, names, SIDE, threads, report) or (SIDE, SIDE)
    reader = _Reader(found.root, names, _Listing.of(found), size, "decoded")

    def refusal(image: int) -> Skipped | None:
        try:
            reader.read(image)
        except Unreadable as error:
            return Skipped(names[image], str(error))
        return None

    refused: list[Skipped] = []
    with ThreadPoolExecutor(threads) as executor:
        for start in range(0, len(names), MEASURED_AT_ONCE):
            report(Progress("checking", start, len(names), len(refused)))
            images = range(start, min(start + MEASURED_AT_ONCE, len(names)))
            refused += filter(None, executor.map(refusal, images))
    return tuple(refused)


def listing_digest(found: Scan) -> str:
    """Of the names, sizes and modification times of a folder's images: changes when the folder does."""
    return _Listing.of(found).digest


def _refuse_inside(out: Path, root: Path) -> None:
    place, data = Path(os.path.realpath(out)), Path(os.path.realpath(root))
    if place == data or (data in place.parents and not any(map(hidden, place.relative_to(data).parts))):
        raise DataError(f"{out} lies in the data, where a store would pass for a domain; give a place outside {root}")


@dataclass(frozen=True)
class _Listing:
    digest: str
    sizes: NDArray[np.int64]  # of the files in bytes; -1: unknown
    times: NDArray[np.int64]  # of their last change

    @classmethod
    def of(cls, found: Scan) -> _Listing:
        digest = hashlib.blake2b(repr((found.domains, found.classes)).encode(), digest_size=16)
        states = []
        for file in (file for files in found.files for file in files):
            size, changed = -1, 0
            with contextlib.suppress(OSError):  # reading the file will tell what is wrong with it
                status = os.stat(found.root / file)
                size, changed = status.st_size, status.st_mtime_ns
            states.append((size, changed))
            digest.update(f"{file}\0{size}\0{changed}\n".encode("utf-8", "surrogateescape"))
        sizes, times = np.array(states, dtype=np.int64).reshape(-1, 2).T
        return cls(digest.hexdigest(), sizes, times)


class _Reader:
    """Files to pictures; for all threads, so that large images do not come at the same time."""

    def __init__(self, root: Path, names: Sequence[str], listing: _Listing, size: tuple[int, int], mode: Mode) -> None:
        self._root, self._names, self._listing, self._size, self._mode = root, names, listing, size, mode
        self._room = _Room(PIXELS_AT_ONCE)

    def read(self, image: int) -> Picture:
        name = self._names[image]
        try:
            with (self._root / name).open("rb") as file:
                self._refuse_changed(image, file)
                found = self._resample(image, file)
                file.seek(0)  # read a second time: its bytes beside its pixels would be too much
                digest = hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=8)).digest()
                content = found.pixels.transpose(2, 0, 1).tobytes()
                if self._mode == "encoded":
                    file.seek(0)
                    content = file.read()
                self._refuse_changed(image, file)
        except OSError as error:
            raise Unreadable(f"{name} cannot be read: {error.strerror}") from error
        return Picture(content, found.width, found.height, digest)

    def _resample(self, image: int, file: IO[bytes]) -> Resampled:
        try:
            with self._room.taken(_pixels(file)):
                return resample(file, name=self._names[image], size=self._size)
        except DataError as error:
            self._refuse_changed(image, file)
            raise Unreadable(str(error)) from error

    def _refuse_changed(self, image: int, file: IO[bytes]) -> None:
        status = os.fstat(file.fileno())
        if (status.st_size, status.st_mtime_ns) != (self._listing.sizes[image], self._listing.times[image]):
            path = self._root / self._names[image]
            raise DataError(f"{path} changed while it was packed; pack again when nothing changes it")


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
            measured = executor.map(lambda name: _measure(root / name, side), names[start : start + MEASURED_AT_ONCE])
            common.update(size for size in measured if size is not None)
            if len(common) > 1 or any(max(size) > side for size in common):
                return None
    return next(iter(common), None)


def _measure(path: Path, side: int) -> tuple[int, int] | None:
    """Height and width as decoding will find them, which way up only where it matters; None: it will fail."""
    try:
        return measure(path, upright_up_to=side)
    except Exception:  # decoders raise anything on damaged files
        return None


def _pixels(file: IO[bytes]) -> int:
    try:
        height, width = measure(file, upright_up_to=0)
        return height * width
    except Exception:  # decoders raise anything on damaged files; decoding it, which takes no room, will say what
        return 0


def _silent(_: Progress) -> None: ...

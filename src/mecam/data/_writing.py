"""Write a store: shards in parallel, then index and header, then one move.

Each thread writes whole shards, runs of consecutive images, to their place in one file. A small file beside it marks
a complete shard, with its checksum. All is in a hidden folder of this process until the store is moved to its place
(`mecam.storage.publishing`). The next process copies the complete shards of one that was killed.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import shutil
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, CancelledError, ThreadPoolExecutor, wait
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mecam.data.domains import DataError, UnreadableError
from mecam.data.store import (
    DATA,
    ENTRY,
    FORMAT,
    HEADER,
    INDEX,
    NAMES,
    VERSION,
    VERSION_OF_SIZES,
    Mode,
    Skipped,
    Store,
    is_store,
)
from mecam.data.store import seal as seal_header
from mecam.progress import Event, Progress
from mecam.storage import publishing
from mecam.storage.checksums import digest_blocks, read_blocks, seal, unseal
from mecam.storage.files import make_folder, write_all, write_atomic, writing

SHARD_BYTES = 8 << 20  # lost by a kill at most, per thread
INTERVAL = 0.1  # seconds between reports
SHOWN = 10  # unreadable images in an error message
PICTURE = np.dtype([("width", "<u4"), ("height", "<u4"), ("digest", "V8")])  # from the image file


def counted(task: str, done: int, images: int, unreadable: int = 0) -> Event:
    """Return the progress of a phase: "measuring", "packing", or "checking", which writes nothing."""
    return Event(task, done, images, "images", f"{unreadable} unreadable" if unreadable else "")


class Unreadable(Exception):
    """An image that cannot be read, and why."""


@dataclass(frozen=True)
class Picture:
    """The stored bytes of an image, and its part of the index."""

    content: bytes
    width: int
    height: int
    digest: bytes


@dataclass(frozen=True)
class Shard:
    """Consecutive images that are complete in the data file."""

    digest: str
    pictures: str  # the images' part of the index, in hexadecimal; zeros where an image is unreadable
    reasons: dict[str, str]  # why, by the image's name


@dataclass(frozen=True)
class Plan:
    """The content of a store. Images are numbered consecutively, domain by domain."""

    name: str
    domains: tuple[str, ...]
    classes: tuple[str, ...]
    counts: tuple[int, ...]  # images per domain
    names: Sequence[str]
    labels: NDArray[np.int64]
    mode: Mode
    size: tuple[int, int]
    sizes: tuple[tuple[int, int], ...]  # of the images of each domain; `size` if all are the same
    lengths: NDArray[np.int64]  # bytes of each image in the store
    source: str  # changes with anything else here, and with the images
    read: Callable[[int], Picture]  # raises Unreadable

    def __len__(self) -> int:
        return len(self.names)

    def offsets(self) -> NDArray[np.int64]:
        """Return the offset of each image, and of the end."""
        return np.concatenate([[0], np.cumsum(self.lengths)])

    def shards(self) -> list[range]:
        """Return runs of images of at most SHARD_BYTES, or of a single larger image."""
        starts, filled = [0], 0
        for image, length in enumerate(self.lengths.tolist()):
            if filled and filled + length > SHARD_BYTES:
                starts.append(image)
                filled = 0
            filled += length
        return [range(start, end) for start, end in pairwise([*starts, len(self)])]


def write(plan: Plan, out: Path, *, skip_unreadable: bool, threads: int, report: Progress) -> Store:
    """Return the store of this plan at `out`. Write it unless it exists."""

    def waiting() -> None:
        report(Event("waiting", text="another process packs the same images"))

    while not _exists(plan, out, skip_unreadable):
        with publishing.private_folder(out, waiting=waiting) as work:
            if not _exists(plan, out, skip_unreadable):
                store = work / "store"
                make_folder(store)
                shards = _fill(plan, store / DATA, threads, report)
                _finish(plan, store, shards, skip_unreadable)
                publishing.publish(store, out)
    publishing.sweep(out)
    return Store(out)


def _fill(plan: Plan, path: Path, threads: int, report: Progress) -> list[Shard]:
    """Write all shards to a new file. Copy those that earlier writers completed, the last first."""
    offsets, shards = plan.offsets(), plan.shards()
    former = [data for data in path.parent.parent.rglob(DATA) if data != path]
    with writing(path):
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
    try:
        _reserve(descriptor, path, int(offsets[-1]), former)
        filling = _Filling(plan, path, descriptor, offsets, [0] * len(shards), [0] * len(shards))

        def show() -> None:
            report(counted("packing", sum(filling.done), len(plan), sum(filling.unreadable)))

        complete: dict[int, Shard] = {}
        for number in reversed(range(len(shards) if former else 0)):
            if (shard := filling.copied(number, shards[number], former)) is not None:
                complete[number] = shard
                show()
        with ThreadPoolExecutor(threads) as executor:
            futures = {
                number: executor.submit(filling.shard, number, images)
                for number, images in enumerate(shards)
                if number not in complete
            }
            pending = set(futures.values())
            try:
                while pending:
                    done, pending = wait(pending, timeout=INTERVAL, return_when=FIRST_COMPLETED)
                    for future in done:
                        future.result()
                    show()
            except BaseException:
                filling.stop.set()
                executor.shutdown(cancel_futures=True)
                raise
        with writing(path):
            os.fsync(descriptor)
        written = complete | {number: future.result() for number, future in futures.items()}
        return [written[number] for number in range(len(shards))]
    finally:
        os.close(descriptor)


def _reserve(descriptor: int, path: Path, size: int, former: Sequence[Path]) -> None:
    """Give the file its size. Fail before hours of work if the disk is clearly too small.

    Earlier writers' files shrink as they are copied.
    """
    missing = size - sum(data.stat().st_blocks * 512 for data in former)
    with writing(path, missing):
        if missing > shutil.disk_usage(path.parent).free:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        os.ftruncate(descriptor, size)


@dataclass(frozen=True)
class _Filling:
    """State that the threads share. Each counts at its own shard's index."""

    plan: Plan
    path: Path
    descriptor: int
    offsets: NDArray[np.int64]
    done: list[int]
    unreadable: list[int]
    stop: threading.Event = field(default_factory=threading.Event)

    def copied(self, number: int, images: range, former: Sequence[Path]) -> Shard | None:
        """Copy a shard that an earlier writer completed, and truncate its file there, so that both fit on the disk."""
        start, end = int(self.offsets[images.start]), int(self.offsets[images.stop])
        found = None
        for data in former:
            content, known = b"", None
            with contextlib.suppress(OSError, ValueError, TypeError, RecursionError):
                known = Shard(**unseal(_mark(data, number).read_bytes(), self._belongs_to(images)))
                content = b"".join(read_blocks(data, start, end - start))
            if found is None and known is not None and known.digest == digest_blocks([content]):
                found = known
                with writing(self.path, len(content)):
                    write_all(self.descriptor, content, start)
                self._keep(number, images, found)
                self.done[number], self.unreadable[number] = len(images), len(found.reasons)
            with contextlib.suppress(OSError):
                os.truncate(data, min(start, data.stat().st_size))
        return found

    def shard(self, number: int, images: range) -> Shard:
        digest, reasons = hashlib.blake2b(digest_size=16), {}
        pictures = np.zeros(len(images), dtype=PICTURE)
        for place, image in enumerate(images):
            if self.stop.is_set():
                raise CancelledError  # another shard failed
            content = bytes(self.plan.lengths[image])
            try:
                picture = self.plan.read(image)
            except Unreadable as error:
                reasons[self.plan.names[image]] = str(error)
                self.unreadable[number] += 1
            else:
                content = picture.content
                pictures[place] = picture.width, picture.height, picture.digest
            with writing(self.path, len(content)):
                write_all(self.descriptor, content, int(self.offsets[image]))
            digest.update(content)
            self.done[number] += 1
        return self._keep(number, images, Shard(digest.hexdigest(), pictures.tobytes().hex(), reasons))

    def _keep(self, number: int, images: range, shard: Shard) -> Shard:
        """Mark a shard as complete."""
        write_atomic(_mark(self.path, number), seal(asdict(shard), self._belongs_to(images)))
        return shard

    def _belongs_to(self, images: range) -> bytes:
        """Return a part of a mark's checksum, so that a mark left by other data does not match it."""
        return json.dumps([self.plan.source, images.start, images.stop]).encode()


def _mark(data: Path, number: int) -> Path:
    """Return the file that marks a shard of this data file as complete."""
    return data.parent.parent / f"shard-{number:06d}.json"


def _finish(plan: Plan, folder: Path, shards: Sequence[Shard], skip_unreadable: bool) -> None:
    """Write index, names and header of the store."""
    skipped = [Skipped(name, reason) for shard in shards for name, reason in shard.reasons.items()]
    if skipped and not skip_unreadable:
        raise _unreadable_error(plan.name, skipped)
    pictures = np.frombuffer(b"".join(bytes.fromhex(shard.pictures) for shard in shards), dtype=PICTURE)
    kept = np.flatnonzero(pictures["width"])
    domain = np.repeat(np.arange(len(plan.domains)), plan.counts)
    _check_classes(plan, domain, kept, skipped)
    names = [plan.names[image].encode("utf-8", "surrogateescape") for image in kept.tolist()]
    index = np.zeros(len(kept), dtype=ENTRY)
    for column in ("width", "height", "digest"):
        index[column] = pictures[column][kept]
    index["offset"], index["bytes"], index["label"] = plan.offsets()[kept], plan.lengths[kept], plan.labels[kept]
    index["name_bytes"] = [len(name) for name in names]
    index["name"] = np.cumsum(index["name_bytes"], dtype=np.uint64) - index["name_bytes"]
    contents = {INDEX: index.tobytes(), NAMES: b"".join(names)}
    header = {
        "format": FORMAT,
        "version": VERSION if set(plan.sizes) == {plan.size} else VERSION_OF_SIZES,
        "name": plan.name,
        "mode": plan.mode,
        "domains": plan.domains,
        "classes": plan.classes,
        "counts": np.bincount(domain[kept], minlength=len(plan.domains)).tolist(),
        "size": plan.size,
        **({} if set(plan.sizes) == {plan.size} else {"sizes": plan.sizes}),
        "fingerprint": _fingerprint(plan, index, domain[kept], contents[NAMES]),
        "source": plan.source,
        "skipped": [asdict(entry) for entry in skipped],
        "shards": [
            [int(plan.lengths[images.start : images.stop].sum()), shard.digest]
            for images, shard in zip(plan.shards(), shards, strict=True)
        ],
        **{file: {"bytes": len(content), "digest": digest_blocks([content])} for file, content in contents.items()},
    }
    for file, content in {**contents, HEADER: seal_header(header)}.items():
        write_atomic(folder / file, content)


def _fingerprint(plan: Plan, index: NDArray[np.void], domain: NDArray[np.int64], names: bytes) -> str:
    """Return the same digest for decoded and encoded stores of the same files."""
    content: list[Any] = [plan.domains, plan.classes]
    first = np.repeat(np.arange(len(plan.domains)), plan.counts).tolist()
    if not all(name.startswith(f"{plan.domains[of]}/") for name, of in zip(plan.names, first, strict=True)):
        content.append(np.bincount(domain, minlength=len(plan.domains)).tolist())  # the names do not say the domain
    digest = hashlib.blake2b(json.dumps(content).encode(), digest_size=16)
    for column in ("label", "digest", "name_bytes"):
        digest.update(index[column].tobytes())
    digest.update(names)
    return digest.hexdigest()


def _exists(plan: Plan, out: Path, skip_unreadable: bool) -> bool:
    if not out.exists() or (out.is_dir() and not any(out.iterdir())):
        return False
    if not is_store(out):
        raise DataError(f"{out} exists and is not a store; remove it, or give another place for the store")
    store = Store(out)
    if store.source != plan.source:
        raise DataError(
            f"{out} is a store of other data, of the data before a change, or packed with other options; remove it, or "
            "give another place for the store"
        )
    if store.skipped and not skip_unreadable:
        raise _unreadable_error(plan.name, store.skipped)
    return True


def _unreadable_error(name: str, images: Sequence[Skipped]) -> UnreadableError:
    shown = "".join(f"\n  {' '.join(image.reason.split())}" for image in images[:SHOWN])
    more = f"\n  and {len(images) - SHOWN} more" if len(images) > SHOWN else ""
    many = "1 image" if len(images) == 1 else f"{len(images)} images"
    return UnreadableError(
        f"{many} of {name} cannot be read; replace or remove them, or leave them out: with --skip-unreadable of mecam "
        "fit, mecam train, mecam bench and mecam data pack, whose store (its --out) is then given as --data; in Python "
        f"with skip_unreadable=True:{shown}{more}"
    )


def _check_classes(plan: Plan, domain: NDArray[np.int64], kept: NDArray[np.int64], skipped: Sequence[Skipped]) -> None:
    """Raise an error if a domain has lost its last image of a class."""
    pair = domain * len(plan.classes) + plan.labels
    emptied = np.setdiff1d(pair, pair[kept])
    if len(emptied):
        where, label = divmod(int(emptied[0]), len(plan.classes))
        name, domain_name = plan.classes[label], plan.domains[where]
        lost = {plan.names[image] for image in np.flatnonzero(pair == emptied[0]).tolist()}
        reason = next(image.reason for image in skipped if image.name in lost)
        raise DataError(
            f"no image of {name!r} in {domain_name!r} can be read, so the domain would lose the class: {reason}"
        )

"""How a store comes into being: shards in parallel, index and header, one move at the end.

Each thread writes whole shards, runs of neighbouring images, into their place in one file; a journal tells which are
complete, with their checksums. All of it lies in a hidden folder beside the store's place until it is moved there.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from mecam.data._journal import Journal, Shard, move, no_room, only_writer, write_at, write_file, writing
from mecam.data.domains import DataError, UnreadableError
from mecam.data.store import (
    DATA,
    ENTRY,
    FORMAT,
    HEADER,
    INDEX,
    NAMES,
    VERSION,
    Mode,
    Skipped,
    Store,
    digest_of,
    is_store,
    read_blocks,
    seal,
)

SHARD_BYTES = 8 << 20  # what a kill costs at most, for each thread
SECONDS_BETWEEN_REPORTS = 0.1
SHOWN = 10  # unreadable images in an error
PICTURE = np.dtype([("width", "<u4"), ("height", "<u4"), ("digest", "V8")])  # the part of an entry that reading tells

OnError = Literal["refuse", "skip"]


@dataclass(frozen=True)
class Progress:
    """How far packing is; "waiting" for another process that packs the same data, "measuring" the images' sizes.

    "checking" decodes the images, and writes nothing.
    """

    phase: Literal["waiting", "measuring", "packing", "checking"]
    done: int  # images
    total: int
    unreadable: int = 0


Report = Callable[[Progress], None]


class Unreadable(Exception):
    """An image that cannot be read, and why."""


class _Stopped(Exception):
    """Another shard failed."""


@dataclass(frozen=True)
class Picture:
    """What is stored of an image: its bytes, and what the index says of it."""

    content: bytes
    width: int
    height: int
    digest: bytes


@dataclass(frozen=True)
class Plan:
    """What will be in a store. Images are numbered through, domain after domain."""

    name: str
    domains: tuple[str, ...]
    classes: tuple[str, ...]
    counts: tuple[int, ...]  # images of each domain
    names: Sequence[str]
    labels: NDArray[np.int64]
    mode: Mode
    size: tuple[int, int]
    lengths: NDArray[np.int64]  # bytes of each image in the store
    source: str  # changes when anything else here does, or the images
    read: Callable[[int], Picture]  # raises Unreadable
    fingerprint: str | None = None  # None: a digest of the names, labels and images

    def __len__(self) -> int:
        return len(self.names)

    def offsets(self) -> NDArray[np.int64]:
        """Of each image, and of the end."""
        return np.concatenate([[0], np.cumsum(self.lengths)])

    def shards(self) -> list[range]:
        """Runs of images of at most SHARD_BYTES, or of a single larger one."""
        starts, filled = [0], 0
        for image, length in enumerate(self.lengths.tolist()):
            if filled and filled + length > SHARD_BYTES:
                starts.append(image)
                filled = 0
            filled += length
        return [range(start, end) for start, end in pairwise([*starts, len(self)])]


def write(plan: Plan, out: Path, *, on_error: OnError, threads: int, report: Report) -> Store:
    """The store of this plan at `out`; written if it is not there yet."""
    with only_writer(out, waiting=lambda: report(Progress("waiting", 0, len(plan)))) as guard:
        work = out.parent / f".{out.name}.packing"
        if not _is_there(plan, out, on_error):
            with Journal(work, json.dumps({"source": plan.source, "shard_bytes": SHARD_BYTES})) as journal:
                with writing(work):
                    (work / "store").mkdir(exist_ok=True)
                _fill(plan, work / "store" / DATA, journal, threads, report)
                _finish(plan, work / "store", journal.shards, on_error)
            guard()
            move(work / "store", out)
        shutil.rmtree(work, ignore_errors=True)
    return Store(out)


def _fill(plan: Plan, path: Path, journal: Journal, threads: int, report: Report) -> None:
    """Write the shards that the journal lacks, and those whose bytes are not as it says."""
    offsets, shards = plan.offsets(), plan.shards()
    with writing(path):
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        _reserve(descriptor, path, int(offsets[-1]))
        filling = _Filling(plan, path, descriptor, journal, offsets, [0] * len(shards), [0] * len(shards))
        with ThreadPoolExecutor(threads) as executor:
            pending = {executor.submit(filling.shard, number, images) for number, images in enumerate(shards)}
            try:
                while pending:
                    done, pending = wait(pending, timeout=SECONDS_BETWEEN_REPORTS, return_when=FIRST_COMPLETED)
                    for future in done:
                        future.result()
                    report(Progress("packing", sum(filling.done), len(plan), sum(filling.unreadable)))
            except BaseException:
                filling.stop.set()
                executor.shutdown(cancel_futures=True)
                raise
        with writing(path):
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _reserve(descriptor: int, path: Path, size: int) -> None:
    """Give the file its size; room that is plainly missing is told before hours of work."""
    missing = size - os.fstat(descriptor).st_blocks * 512
    if missing > shutil.disk_usage(path.parent).free:
        raise no_room(path, f"{missing / 1e6:,.1f} MB are needed")
    with writing(path):
        os.ftruncate(descriptor, size)


@dataclass(frozen=True)
class _Filling:
    """What the threads share; each counts in its own shard's place."""

    plan: Plan
    path: Path
    descriptor: int
    journal: Journal
    offsets: NDArray[np.int64]
    done: list[int]
    unreadable: list[int]
    stop: threading.Event = field(default_factory=threading.Event)

    def shard(self, number: int, images: range) -> None:
        start, end = int(self.offsets[images.start]), int(self.offsets[images.stop])
        known = self.journal.shards.get(number)
        if known and known.digest == digest_of(read_blocks(self.path, start, end - start)):
            self.done[number], self.unreadable[number] = len(images), len(known.reasons)
            return
        digest, reasons = hashlib.blake2b(digest_size=16), {}
        pictures = np.zeros(len(images), dtype=PICTURE)
        for place, image in enumerate(images):
            if self.stop.is_set():
                raise _Stopped
            content = bytes(self.plan.lengths[image])
            try:
                picture = self.plan.read(image)
            except Unreadable as error:
                reasons[self.plan.names[image]] = str(error)
                self.unreadable[number] += 1
            else:
                content = picture.content
                pictures[place] = picture.width, picture.height, picture.digest
            write_at(self.descriptor, content, int(self.offsets[image]), self.path)
            digest.update(content)
            self.done[number] += 1
        self.journal.add(Shard(number, digest.hexdigest(), pictures.tobytes().hex(), reasons))


def _finish(plan: Plan, folder: Path, shards: dict[int, Shard], on_error: OnError) -> None:
    """Index, names and header of the store."""
    ordered = [shards[number] for number in sorted(shards)]
    skipped = [Skipped(name, reason) for shard in ordered for name, reason in shard.reasons.items()]
    if skipped and on_error == "refuse":
        raise _unreadable(plan.name, skipped)
    pictures = np.frombuffer(b"".join(bytes.fromhex(shard.pictures) for shard in ordered), dtype=PICTURE)
    kept = np.flatnonzero(pictures["width"])
    domain = np.repeat(np.arange(len(plan.domains)), plan.counts)
    _refuse_emptied(plan, domain, kept, skipped)
    names = [plan.names[image].encode("utf-8", "surrogateescape") for image in kept.tolist()]
    index = np.zeros(len(kept), dtype=ENTRY)
    for column in ("width", "height", "digest"):
        index[column] = pictures[column][kept]
    index["offset"], index["bytes"], index["label"] = plan.offsets()[kept], plan.lengths[kept], plan.labels[kept]
    index["name_bytes"] = [len(name) for name in names]
    index["name"] = np.cumsum(index["name_bytes"], dtype=np.uint64) - index["name_bytes"]
    files = {INDEX: index.tobytes(), NAMES: b"".join(names)}
    header = {
        "format": FORMAT,
        "version": VERSION,
        "name": plan.name,
        "mode": plan.mode,
        "domains": plan.domains,
        "classes": plan.classes,
        "counts": np.bincount(domain[kept], minlength=len(plan.domains)).tolist(),
        "size": plan.size,
        "fingerprint": plan.fingerprint or _fingerprint(plan, index, files[NAMES]),
        "source": plan.source,
        "skipped": [asdict(entry) for entry in skipped],
        "shards": [
            [int(plan.lengths[images.start : images.stop].sum()), shard.digest]
            for images, shard in zip(plan.shards(), ordered, strict=True)
        ],
        **{file: {"bytes": len(content), "digest": digest_of([content])} for file, content in files.items()},
    }
    for file, content in {**files, HEADER: seal(header)}.items():
        write_file(folder / file, content)


def _fingerprint(plan: Plan, index: NDArray[np.void], names: bytes) -> str:
    """The same for decoded and for encoded stores of the same files."""
    digest = hashlib.blake2b(json.dumps([plan.domains, plan.classes]).encode(), digest_size=16)
    for column in ("label", "digest", "name_bytes"):
        digest.update(index[column].tobytes())
    digest.update(names)
    return digest.hexdigest()


def _is_there(plan: Plan, out: Path, on_error: OnError) -> bool:
    if not out.exists() or (out.is_dir() and not any(out.iterdir())):
        return False
    if not is_store(out):
        raise DataError(f"{out} exists and is not a store; remove it, or give another place for the store")
    found = Store(out)
    if found.source != plan.source:
        raise DataError(
            f"{out} is a store of other data, of the data as it was before a change, or packed with other options; "
            "remove it, or give another place for the store"
        )
    if found.skipped and on_error == "refuse":
        raise _unreadable(plan.name, found.skipped)
    return True


def _unreadable(name: str, images: Sequence[Skipped]) -> UnreadableError:
    shown = "".join(f"\n  {' '.join(image.reason.split())}" for image in images[:SHOWN])
    more = f"\n  and {len(images) - SHOWN} more" if len(images) > SHOWN else ""
    many = "1 image" if len(images) == 1 else f"{len(images)} images"
    return UnreadableError(
        f"{many} of {name} cannot be read; replace or remove them, or leave them out: with --skip-unreadable of mecam "
        "train, mecam bench and mecam data pack, whose store (its --out) is then given as --data; in Python with "
        f'on_error="skip":{shown}{more}'
    )


def _refuse_emptied(plan: Plan, domain: NDArray[np.int64], kept: NDArray[np.int64], skipped: Sequence[Skipped]) -> None:
    """Skipping may not take away a domain's last image of a class."""
    pair = domain * len(plan.classes) + plan.labels
    emptied = np.setdiff1d(pair, pair[kept])
    if len(emptied):
        where, label = divmod(int(emptied[0]), len(plan.classes))
        example = next(
            image for image in skipped if image.name.startswith(f"{plan.domains[where]}/{plan.classes[label]}/")
        )
        raise DataError(
            f"no image of {plan.classes[label]!r} in {plan.domains[where]!r} can be read, so that skipping would take "
            f"the class from the domain: {example.reason}"
        )

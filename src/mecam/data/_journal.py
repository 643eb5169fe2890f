"""What makes packing safe to interrupt: a journal of the complete shards, a claim, and writes that explain failures."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from mecam import claims
from mecam.data.domains import DataError

NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
NO_FOLDER_SYNC = (errno.EINVAL, errno.ENOTSUP, errno.EACCES)  # some network file systems
SECONDS_BETWEEN_TRIES = 0.1


class CannotWriteError(DataError):
    """The place for a store cannot be written, or is full."""


@dataclass(frozen=True)
class Shard:
    """A line of the journal: a run of images that is complete in the data file."""

    number: int
    digest: str  # of its bytes
    pictures: str  # in hexadecimal, what the index says of each image; zeros where it cannot be read
    reasons: dict[str, str]  # why, by the image's name


class Journal:
    """The complete shards of an unfinished store in the folder `work`; a line that a kill cut off was never there.

    A line has a checksum: one that was damaged since, and those after it, were never there either.

    A journal that starts differently belongs to other data: the folder is emptied.
    """

    def __init__(self, work: Path, start: str) -> None:
        self.path = work / "journal.jsonl"
        self.shards: dict[int, Shard] = {}
        self._lock = threading.Lock()
        first = start.encode() + b"\n"
        self._length = self._read(first)
        with writing(self.path):
            if not self._length and work.exists():
                shutil.rmtree(work)
            work.mkdir(exist_ok=True)
            self._descriptor = os.open(self.path, os.O_WRONLY | os.O_CREAT, 0o666)
        try:
            os.ftruncate(self._descriptor, self._length)
            if not self._length:
                self._append(first)
        except BaseException:
            os.close(self._descriptor)
            raise

    def add(self, shard: Shard) -> None:
        """From any thread, as soon as the shard is complete: another's failure must not cost it."""
        with self._lock:
            values = asdict(shard)
            self._append(json.dumps({**values, "checksum": _digest(values)}).encode() + b"\n")
            self.shards[shard.number] = shard

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._descriptor)

    def _append(self, line: bytes) -> None:
        try:
            write_at(self._descriptor, line, self._length, self.path)
        except DataError:
            os.ftruncate(self._descriptor, self._length)  # half a line would hide those that other threads add after it
            raise
        self._length += len(line)

    def _read(self, first: bytes) -> int:
        """Take over the lines that are whole; returns their length."""
        if not self.path.is_file():
            return 0
        with self.path.open("rb") as file:
            if file.readline() != first:
                return 0
            length = len(first)
            for line in file:
                try:
                    values = json.loads(line)
                    if values.pop("checksum") != _digest(values) or not line.endswith(b"\n"):
                        break
                except (ValueError, KeyError, TypeError, AttributeError):
                    break
                shard = Shard(**values)
                self.shards[shard.number] = shard
                length += len(line)
        return length


@contextlib.contextmanager
def only_writer(out: Path, waiting: Callable[[], None]) -> Iterator[Callable[[], None]]:
    """Hold the claim beside `out`; `waiting` is called while another process does.

    What is yielded raises a DataError once another process has taken over, as it may from one suspended for minutes.
    """
    name = f".{out.name}.claim"
    with writing(out):
        out.parent.mkdir(parents=True, exist_ok=True)
    while True:
        with writing(out), contextlib.suppress(claims.HeldError):
            held = claims.acquire(out.parent, name)
            break
        waiting()
        time.sleep(SECONDS_BETWEEN_TRIES)

    def guard() -> None:
        if not held.holds():
            raise DataError(f"another process has taken over packing {out} while this one showed no life; run it again")

    try:
        yield guard
    finally:
        held.release(forget=out.exists())  # with the store there, nobody has work to do


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """A write that fails tells which file, why, and what to do."""
    try:
        yield
    except OSError as error:
        if error.errno in NO_ROOM:
            raise no_room(path, error.strerror or "no room") from error
        why = error.strerror or error
        raise CannotWriteError(f"cannot write {path}: {why}; give another place for the store") from error


def no_room(path: Path, why: str) -> CannotWriteError:
    free = ""
    with contextlib.suppress(OSError):
        free = f" ({shutil.disk_usage(path.parent).free / 1e6:,.1f} MB are free)"
    return CannotWriteError(
        f"cannot write {path}: {why}{free}. What is packed so far is kept: make room and run the same command again, "
        "or give another place for the store"
    )


def write_at(descriptor: int, content: bytes, offset: int, path: Path) -> None:
    rest = memoryview(content)
    with writing(path):
        while rest:
            written = os.pwrite(descriptor, rest, offset)
            rest, offset = rest[written:], offset + written


def write_file(path: Path, content: bytes) -> None:
    """A new file, on the disk for good."""
    with writing(path), path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def move(work: Path, out: Path) -> None:
    """A finished folder into its place, for good."""
    with writing(out):
        _sync(work)
        os.rename(work, out)
        _sync(out.parent)


def _digest(values: dict[str, Any]) -> str:
    return hashlib.blake2b(json.dumps(values).encode(), digest_size=8).hexdigest()


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in NO_FOLDER_SYNC:
            raise
    finally:
        os.close(descriptor)

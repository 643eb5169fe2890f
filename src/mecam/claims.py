"""Who works on something in a folder that machines may share: claim files, without the system's locks.

A claim is a numbered file, <name>-000007, that tells its owner; the one with the highest number counts. It appears by a
hard link under the next number, which any file system gives to one process only, network file systems included, where
locks may be of this machine alone or do nothing. The next number is free to take when the owner has released the claim;
when it was a process of this machine that is gone; or when it has shown no life for STALE seconds: it touches its file
every BEAT seconds. Both times are the file system's own, so that clocks of machines may differ.

Numbers only grow. Who looked too long ago may get one that is no longer the highest, sees that, and gives it back.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
import socket
import threading
import uuid
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

BEAT = 10.0  # seconds between two signs of life
STALE = 120.0  # seconds without one after which an owner that cannot be asked is taken for dead
RELEASED = b'{"released": true}'


class HeldError(Exception):
    """Another process has the claim; the message says which."""


@dataclass(frozen=True)
class Owner:
    """A process, told from all others that ever were."""

    host: str
    pid: int
    started: int | None  # in ticks since its machine's start, where the system tells
    world: str  # in which a pid means this process: this start of this machine, and this space of pids

    @classmethod
    def here(cls) -> Owner:
        pid = os.getpid()
        return cls(socket.gethostname(), pid, _started(pid), _world())

    def is_gone(self) -> bool:
        """Whether it is certain that the process has ended."""
        if self.world != _world() or os.name != "posix":
            return False
        started = _started(self.pid)
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return True
        except PermissionError:  # another user's, of which the system may tell nothing
            return None not in (started, self.started) and started != self.started
        return self.started is not None and started != self.started


@dataclass
class Claim:
    """A claim that this process has; to be released."""

    folder: Path
    name: str
    number: int
    beats: _Heart = field(repr=False)

    @property
    def path(self) -> Path:
        return _path(self.folder, self.name, self.number)

    def holds(self) -> bool:
        """Whether nobody has taken over, as happens to a process that was asleep for long."""
        return _highest(self.folder, self.name) == self.number

    def release(self, *, forget: bool = False) -> None:
        """Let others have it. To forget it, for what nobody will ever claim again, leaves no file.

        It is written over what is there, which takes no room on a disk that may be full.
        """
        self.beats.stop(self)
        with contextlib.suppress(OSError):  # taken over, or out of reach: the others will see that it is silent
            if forget:
                os.unlink(self.path)
                return
            descriptor = os.open(self.path, os.O_WRONLY)
            try:
                os.write(descriptor, RELEASED.ljust(os.fstat(descriptor).st_size - 1) + b"\n")
            finally:
                os.close(descriptor)

    def __enter__(self) -> Claim:
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _: TracebackType | None
    ) -> None:
        self.release()


def acquire(folder: Path, name: str) -> Claim:
    """The claim of this name in the folder; HeldError if another process has it, OSError if nothing can be written."""
    content = json.dumps(asdict(Owner.here())).encode() + b"\n"
    temporary = _write(folder, name, content)
    try:
        while True:
            last = _highest(folder, name)
            if last is not None:
                _require_free(_path(folder, name, last), os.stat(temporary).st_mtime)
            number = (last or 0) + 1
            if _link(temporary, _path(folder, name, number), content):
                claim = Claim(folder, name, number, _HEART)
                if claim.holds():
                    break
                os.unlink(claim.path)
    finally:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
    _HEART.start(claim)
    _sweep(folder, name, number)
    return claim


class _Heart:
    """One thread that touches all claims of this process, while there are any."""

    def __init__(self) -> None:
        self.forget()
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self.forget)  # the claims stay with the parent, as does the thread

    def forget(self) -> None:
        self._claims: dict[Path, Claim] = {}
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None

    def start(self, claim: Claim) -> None:
        with self._changed:
            self._claims[claim.path] = claim
            self._changed.notify_all()
            if self._thread is None:
                self._thread = threading.Thread(target=self._beat, name="mecam claims", daemon=True)
                self._thread.start()

    def stop(self, claim: Claim) -> None:
        with self._changed:
            self._claims.pop(claim.path, None)
            self._changed.notify_all()

    def _beat(self) -> None:
        while True:
            with self._changed:
                if not self._claims:
                    self._thread = None
                    return
                for path in self._claims:
                    with contextlib.suppress(OSError):  # the next one may do
                        os.utime(path)
                self._changed.wait(BEAT)


_HEART = _Heart()


def _require_free(path: Path, now: float) -> None:
    """HeldError unless the claim in this file is nobody's any more; `now` by the file system's clock."""
    try:
        content, seen = path.read_bytes(), path.stat().st_mtime
    except FileNotFoundError:  # taken over meanwhile, and swept away
        return
    if content.rstrip() == RELEASED:
        return
    owner = _owner(content)
    if owner is not None and owner.is_gone():
        return
    silent = max(0.0, now - seen)
    if silent < STALE:
        who = "a process" if owner is None else f"process {owner.pid} on {owner.host}"
        raise HeldError(
            f"{path.name}: {who}, seen {silent:.0f} s ago; after {STALE:.0f} s without a sign it is taken for dead"
        )


def _owner(content: bytes) -> Owner | None:
    """Who wrote this; None if that cannot be told: a file that is being written, or damaged."""
    try:
        values: Any = json.loads(content)
        owner = Owner(**values)
    except (ValueError, TypeError):
        return None
    return owner if isinstance(owner.pid, int) and owner.pid > 0 else None


def _link(temporary: Path, path: Path, content: bytes) -> bool:
    """Put the file at this path, if there is none; whether it was this process that did."""
    try:
        os.link(temporary, path)
    except FileExistsError:
        return False
    except OSError:
        if os.stat(temporary).st_nlink == 2:  # done, and the answer lost on its way from the server
            return True
    else:
        return True
    try:
        _create(path, content)  # no hard links here
    except FileExistsError:
        return False
    return True


def _write(folder: Path, name: str, content: bytes) -> Path:
    path = folder / f".{name}-{secrets.token_hex(8)}.new"
    _create(path, content)
    return path


def _create(path: Path, content: bytes) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
    try:
        os.write(descriptor, content)
    finally:
        os.close(descriptor)


def _sweep(folder: Path, name: str, number: int) -> None:
    """Remove what came before this claim, and what processes left that were killed while they asked for one."""
    with contextlib.suppress(OSError):
        now = os.stat(_path(folder, name, number)).st_mtime
        for entry in os.scandir(folder):
            ended = re.fullmatch(rf"\.{re.escape(name)}-[0-9a-f]{{16}}\.new", entry.name)
            with contextlib.suppress(OSError):
                if _number(entry.name, name) in range(1, number) or (ended and now - entry.stat().st_mtime > STALE):
                    os.unlink(entry.path)


def _highest(folder: Path, name: str) -> int | None:
    return max(filter(None, (_number(entry, name) for entry in os.listdir(folder))), default=None)


def _number(entry: str, name: str) -> int:
    """The number of a claim's file; 0 for any other file."""
    found = re.fullmatch(r"(\d{6,})", entry.removeprefix(f"{name}-")) if entry.startswith(f"{name}-") else None
    return int(found[1]) if found else 0


def _path(folder: Path, name: str, number: int) -> Path:
    return folder / f"{name}-{number:06d}"


def _started(pid: int) -> int | None:
    """When the process started; None if it has ended, or if the system does not tell."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            state, *fields = file.read().rpartition(b")")[2].split()
    except (OSError, ValueError):
        return None
    return None if state in (b"Z", b"X") else int(fields[18])  # ended, and its parent has not asked yet


def _world() -> str:
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{socket.gethostname()} {boot} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return f"{socket.gethostname()} {uuid.getnode():x}"

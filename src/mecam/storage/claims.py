"""Leases on a name in a folder that machines may share, without the locks of the operating system.

A claim is a numbered file, <name>-000007, that identifies its owner. The highest number counts. A hard link creates the
file: every file system grants that to one process only, network file systems included, where locks may cover one
machine or do nothing. The next number is free once the owner has released the claim, once the owner was a process of
this machine and has ended, or once its last heartbeat is STALE seconds old. Both times compared are the file system's,
so clocks of machines may differ. A heartbeat dated in the future is dated anew by whoever wants the claim.

Numbers only grow. A process that acts on an outdated listing gets a number that is not the highest, and gives it back.

A process that was suspended for longer than STALE still believes that it is the owner, wherever in its code it wakes.
So an owner writes and removes files through the staging folder of its claim, .<name>-000007-<token>: it writes a file
there and renames it to its place, or renames a file to there and removes it. The next owner takes the folder away,
before `acquire` returns. From then on every such rename fails, whenever it was prepared. The staging folder is created
before the claim and never again; its token keeps it apart from those of other contenders for the number, and of numbers
that are used again after `release(remove=True)`.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
import shutil
import socket
import threading
import time
import uuid
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path

from mecam.storage.files import RunError, open_plain, read_bytes

HEARTBEAT = 10.0  # seconds between two touches of a claim by its owner
STALE = 120.0  # seconds after the last heartbeat at which the claim of an unreachable owner expires
MOST = 4096  # bytes of a claim
RELEASED = b'{"released": true}'


class HeldError(Exception):
    """Another process holds the claim."""


@dataclass(frozen=True)
class Owner:
    """A process, distinct from all others that ever ran."""

    host: str
    pid: int
    started: int | None  # in clock ticks since boot, where the system reports it
    world: str  # where the pid is valid: host, boot and PID namespace

    @classmethod
    def here(cls) -> Owner:
        pid = os.getpid()
        return cls(socket.gethostname(), pid, _started(pid), _world())

    def is_gone(self) -> bool:
        """Return whether the process has certainly ended."""
        if self.world != _world() or os.name != "posix":
            return False
        started = _started(self.pid)
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return True
        except PermissionError:  # another user's, whose start the system may hide
            return None not in (started, self.started) and started != self.started
        return self.started is not None and started != self.started


@dataclass
class Claim:
    """A claim that this process holds until `release`."""

    folder: Path
    name: str
    number: int
    token: str = field(default_factory=lambda: secrets.token_hex(8), repr=False)
    released: threading.Event = field(default_factory=threading.Event, repr=False)

    @property
    def path(self) -> Path:
        return _path(self.folder, self.name, self.number)

    @property
    def staging(self) -> Path:
        """The folder to write and remove through; it is gone once another process has taken over."""
        return self.folder / f".{self.name}-{self.number:06d}-{self.token}"

    def is_held(self) -> bool:
        """Return whether no other process has taken over, as happens to a process that was suspended for long."""
        return _highest(self.folder, self.name) == self.number

    def require(self, what: Path, error: Callable[[str], Exception]) -> None:
        """Raise an error if another process has taken over `what`."""
        if not self.is_held():
            raise error(f"another process has taken over {what} after this one sent no heartbeat for {STALE:.0f} s")

    def release(self, *, remove: bool = False) -> None:
        """Release the claim. Remove its file if the name will not be claimed again.

        The file is overwritten in place, which takes no space on a full disk.
        """
        self.released.set()
        shutil.rmtree(self.staging, ignore_errors=True)
        with contextlib.suppress(OSError):  # taken over, or out of reach: others will see that it is stale
            if remove:
                os.unlink(self.path)
                return
            descriptor = open_plain(self.path, os.O_WRONLY)
            try:
                os.write(descriptor, RELEASED.ljust(os.fstat(descriptor).st_size - 1) + b"\n")
            finally:
                os.close(descriptor)

    def __enter__(self) -> Claim:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def send_heartbeats(self) -> None:
        while not self.released.wait(HEARTBEAT):
            with contextlib.suppress(OSError):
                os.utime(self.path)


def acquire(folder: Path, name: str) -> Claim:
    """Take the claim of this name. Raise HeldError if another process holds it, OSError if the folder is read-only."""
    content = json.dumps(asdict(Owner.here())).encode() + b"\n"
    while (claim := _next(folder, name, content)) is None:
        pass
    threading.Thread(target=claim.send_heartbeats, name="mecam claim", daemon=True).start()
    try:
        _fence(claim)
    except BaseException:
        claim.release()
        raise
    _sweep(claim)
    return claim


def _next(folder: Path, name: str, content: bytes) -> Claim | None:
    """Take the next number. Return None if another process was faster."""
    last = _highest(folder, name)
    claim = Claim(folder, name, last + 1)
    os.mkdir(claim.staging)
    is_mine = False
    try:
        owner = claim.staging / "owner"
        _create(owner, content)
        if last:
            _require_free(_path(folder, name, last), os.stat(owner).st_mtime, redate=True)
        if _link(owner, claim.path, content):
            is_mine = claim.is_held()
            if not is_mine:
                os.unlink(claim.path)
    except FileNotFoundError:  # the staging folder was taken away: another process has a higher number
        if not folder.exists():
            raise
    finally:
        if not is_mine:
            shutil.rmtree(claim.staging, ignore_errors=True)
    return claim if is_mine else None


def is_held(folder: Path, name: str) -> bool:
    """Return whether a process holds the claim of this name; nothing is written."""
    last = _highest(folder, name)
    try:
        if last:
            _require_free(_path(folder, name, last), time.time())
    except HeldError:
        return True
    return False


def _require_free(path: Path, now: float, *, redate: bool = False) -> None:
    """Raise HeldError unless the claim in this file has ended; `now` is the file system's time."""
    try:
        content, touched = read_bytes(path, most=MOST), path.stat(follow_symlinks=False).st_mtime
    except (RunError, FileNotFoundError) as error:
        if not os.path.lexists(path):  # taken over and swept meanwhile
            return
        raise HeldError(str(error)) from error
    if content.rstrip() == RELEASED:
        return
    owner = _owner(content)
    if owner is not None and owner.is_gone():
        return
    if redate and touched > now:
        with contextlib.suppress(OSError):
            os.utime(path, follow_symlinks=False)
    age = max(0.0, now - touched)
    if age < STALE:
        who = "a process" if owner is None else f"process {owner.pid} on {owner.host}"
        raise HeldError(f"{path.name}: {who}, last heartbeat {age:.0f} s ago; stale after {STALE:.0f} s")


def _owner(content: bytes) -> Owner | None:
    """Return who wrote this; None for a file that is being written or is damaged."""
    try:
        owner = Owner(**json.loads(content))
    except (ValueError, TypeError):
        return None
    return owner if isinstance(owner.pid, int) and owner.pid > 0 else None


def _link(temporary: Path, path: Path, content: bytes) -> bool:
    """Create the file at this path. Return False if it exists."""
    try:
        try:
            os.link(temporary, path)
        except FileExistsError:
            raise
        except OSError:
            # two links: done, and the server's answer was lost; otherwise there are no hard links here
            if os.stat(temporary).st_nlink != 2:
                _create(path, content)
    except FileExistsError:
        return False
    return True


def _create(path: Path, content: bytes) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
    try:
        os.write(descriptor, content)
    finally:
        os.close(descriptor)


def _fence(claim: Claim) -> None:
    """Take the staging folders of earlier claims away from their owners, in one operation each, and remove them."""
    pattern = re.compile(rf"\.{re.escape(claim.name)}-(\d{{6,}})-[0-9a-f]{{16}}(\.old)?")
    for name in os.listdir(claim.folder):
        found = pattern.fullmatch(name)
        if found is None or int(found[1]) > claim.number or name == claim.staging.name:
            continue
        taken = claim.folder / (name if found[2] else f"{name}.old")
        with contextlib.suppress(FileNotFoundError):  # its owner, or a later one, removed it
            os.rename(claim.folder / name, taken)
        shutil.rmtree(taken, ignore_errors=True)  # on NFS, files that a suspended process has open stay


def _sweep(claim: Claim) -> None:
    """Remove the claims before this one."""
    with contextlib.suppress(OSError):
        for name in os.listdir(claim.folder):
            if 0 < _number(name, claim.name) < claim.number:
                with contextlib.suppress(OSError):
                    os.unlink(claim.folder / name)


def _highest(folder: Path, name: str) -> int:
    return max((_number(entry, name) for entry in os.listdir(folder)), default=0)


def _number(entry: str, name: str) -> int:
    """Return the number of a claim's file; 0 for any other file."""
    match = re.fullmatch(rf"{re.escape(name)}-(\d{{6,}})", entry)
    return int(match[1]) if match else 0


def _path(folder: Path, name: str, number: int) -> Path:
    return folder / f"{name}-{number:06d}"


def _started(pid: int) -> int | None:
    """Return when the process started; None if it has ended or the system does not report it."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            state, *fields = file.read().rpartition(b")")[2].split()
    except (OSError, ValueError):
        return None
    return None if state in (b"Z", b"X") else int(fields[18])  # Z, X: ended, and not yet reaped by its parent


def _world() -> str:
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{socket.gethostname()} {boot} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return f"{socket.gethostname()} {uuid.getnode():x}"

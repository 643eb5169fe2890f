"""Faults at the n-th system call that writes: a kill, an error, a power cut."""

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import product
from pathlib import Path
from typing import Any

from mecam.storage.files import RunError

CALLS = ("open", "write", "chmod", "fsync", "close", "replace", "unlink", "mkdir", "ftruncate")
Real = Callable[..., Any]


@contextmanager
def before_each(act: Callable[[str, Real, tuple[Any, ...]], Any], calls: tuple[str, ...] = CALLS) -> Iterator[None]:
    """Every call of these functions of `os` goes through act(name, real function, arguments)."""
    real = {name: getattr(os, name) for name in calls}

    def through(name: str) -> Real:
        return lambda *args: real[name](*args) if _reads(name, args) else act(name, real[name], args)

    try:
        for name in calls:
            setattr(os, name, through(name))
        yield
    finally:
        for name in calls:
            setattr(os, name, real[name])


def _reads(name: str, args: tuple[Any, ...]) -> bool:
    """Whether the call opens a file to read it. A folder is opened to sync it."""
    return name == "open" and args[1] & os.O_ACCMODE == os.O_RDONLY and not os.path.isdir(args[0])


def refusal_of(work: Callable[[], None]) -> str | None:
    """Return the message of the RunError that the work raises, None if it succeeds."""
    try:
        work()
    except RunError as error:
        return str(error)
    return None


def killing(at: int) -> Callable[[str, Real, tuple[Any, ...]], Any]:
    """SIGKILL before call number `at`; when that writes, after half of it."""
    count = 0

    def act(name: str, real: Real, args: tuple[Any, ...]) -> Any:
        nonlocal count
        count += 1
        if count == at:
            if name == "write":
                real(args[0], args[1][: len(args[1]) // 2])
            os.kill(os.getpid(), signal.SIGKILL)
        return real(*args)

    return act


def failing(at: int, error: int) -> Callable[[str, Real, tuple[Any, ...]], Any]:
    """An OSError instead of call number `at`; a write that fails has written half."""
    count = 0

    def act(name: str, real: Real, args: tuple[Any, ...]) -> Any:
        nonlocal count
        count += 1
        if count == at:
            if name == "write":
                real(args[0], args[1][: len(args[1]) // 2])
            if name == "close":
                real(*args)
            raise OSError(error, os.strerror(error))
        return real(*args)

    return act


class PowerCuts:
    """What a disk may hold after a power cut during writes to one folder.

    A file has the content of its last fsync, nothing without one. A name that changed since the folder's last fsync is
    as before or as after, each name for itself.
    """

    def __init__(self, folder: Path, check: Callable[[dict[str, bytes]], None]) -> None:
        self.folder, self.check = folder, check
        self.synced = {number: path.read_bytes() for number, path in enumerate(sorted(folder.iterdir()))}
        self.names = {path.name: number for number, path in enumerate(sorted(folder.iterdir()))}
        self.durable = dict(self.names)
        self.opened: dict[int, int | None] = {}  # file, None for the folder, by descriptor
        self.cuts = 0
        self.is_checking = False

    def __call__(self, name: str, real: Real, args: tuple[Any, ...]) -> Any:
        if self.is_checking:
            return real(*args)
        self.cut()
        result = real(*args)
        if name == "open" and Path(args[0]) == self.folder:
            self.opened[result] = None
        elif name == "open":
            number = self.names.setdefault(Path(args[0]).name, len(self.synced))
            self.synced.setdefault(number, b"")
            self.opened[result] = number
        elif name == "fsync" and self.opened[args[0]] is None:
            self.durable = dict(self.names)
        elif name == "fsync":
            number = self.opened[args[0]] or 0
            self.synced[number] = self._path(number).read_bytes()
        elif name == "replace":
            self.names[Path(args[1]).name] = self.names.pop(Path(args[0]).name)
        elif name == "unlink":
            self.names.pop(Path(args[0]).name)
        return result

    def cut(self) -> None:
        """Check every folder that a power cut at this moment may leave."""
        changed = sorted(k for k in self.names.keys() | self.durable.keys() if self.names.get(k) != self.durable.get(k))
        for after in product((False, True), repeat=len(changed)):
            survivors = dict(self.durable)
            for name, is_new in zip(changed, after, strict=True):
                number = self.names.get(name) if is_new else self.durable.get(name)
                survivors.pop(name, None)
                if number is not None:
                    survivors[name] = number
            self.cuts += 1
            self.is_checking = True
            self.check({name: self.synced[number] for name, number in survivors.items()})
            self.is_checking = False

    def _path(self, number: int) -> Path:
        return self.folder / next(name for name, n in self.names.items() if n == number)

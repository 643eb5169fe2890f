"""A file system that fails, or kills: on PYTHONPATH this runs first in every Python process, also in workers.

MECAM_FAULT holds a JSON object:

    root        the folder whose files are looked at; calls on others pass
    begun       a file that appears at the first call, so that the outside knows that work has begun
    save_every  seconds between two checkpoints of a run
    how         null for nothing, SIGKILL, or the name of an error: ENOSPC, EIO, EROFS
    match       a part of the paths that count
    calls       the functions of `os` that count, null for all that write; ["decode"]: images that are decoded
    at          which of them is hit, from 1
    lasts       whether those after it fail as well, as on a full disk
    once        a file that appears with the fault: a process that finds it is spared
"""

import contextlib
import errno
import json
import os
import signal
import sys
from collections.abc import Callable
from typing import Any

BY_PATH = ("open", "mkdir", "unlink", "chmod", "utime")
BY_TARGET = ("replace", "rename", "link")
BY_FILE = ("write", "pwrite", "fsync", "ftruncate")
WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT
Real = Callable[..., Any]


class Shim:
    """Looks at every call; hits the one that it was told to."""

    def __init__(self, fault: dict[str, Any]) -> None:
        self.fault = fault
        self.root = os.path.realpath(fault["root"])
        self.files: dict[int, str] = {}
        self.count = 0
        self.real = {name: getattr(os, name) for name in (*BY_PATH, *BY_TARGET, *BY_FILE, "close")}

    def install(self) -> None:
        for name in self.real:
            setattr(os, name, self.through(name))
        if self.fault["calls"] == ["decode"]:
            from PIL import Image

            opened = Image.open

            def decode(*args: Any, **options: Any) -> Any:
                self.look("decode", "", ())
                return opened(*args, **options)

            Image.open = decode

    def through(self, name: str) -> Real:
        def call(*args: Any, **options: Any) -> Any:
            path = None if options.get("dir_fd") is not None else self.path(name, args)
            if path is not None:
                self.begin()
                self.look(name, path, args)
            result = self.real[name](*args, **options)
            if name == "open" and path is not None:
                self.files[result] = path
            elif name == "close":
                self.files.pop(args[0], None)
            return result

        return call

    def path(self, name: str, args: tuple[Any, ...]) -> str | None:
        """The file that a call is about, from the root; None for one elsewhere."""
        if name == "close":
            return None
        if name in BY_FILE:
            return self.files.get(args[0])
        given = args[1] if name in BY_TARGET else args[0]
        if isinstance(given, int):
            return self.files.get(given)
        full = os.path.abspath(os.fsdecode(given))
        return os.path.relpath(full, self.root) if (full + os.sep).startswith(self.root + os.sep) else None

    def begin(self) -> None:
        loop = sys.modules.get("mecam.training.loop")
        if loop is not None:
            loop.SAVE_EVERY = self.fault["save_every"]  # type: ignore[attr-defined]
        if self.fault["begun"] and loop is not None:
            self.mark(self.fault["begun"])
            self.fault["begun"] = None

    def look(self, name: str, path: str, args: tuple[Any, ...]) -> None:
        how, calls = self.fault["how"], self.fault["calls"]
        if how is None or self.fault["match"] not in path or (calls is not None and name not in calls):
            return
        if name == "open" and not args[1] & WRITES:
            return
        self.count += 1
        at, lasts = self.fault["at"], self.fault["lasts"]
        if self.count == at and not self.mark(self.fault["once"]) and not lasts:
            return
        if self.count != at and not (lasts and self.count > at):
            return
        if name == "write":
            self.real["write"](args[0], args[1][: len(args[1]) // 2])
        if how == "SIGKILL":
            os.kill(os.getpid(), signal.SIGKILL)
        number = getattr(errno, how)
        raise OSError(number, os.strerror(number))

    def mark(self, file: str) -> bool:
        """Whether the file is new."""
        with contextlib.suppress(FileExistsError):
            self.real["close"](self.real["open"](file, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
            return True
        return False


if "MECAM_FAULT" in os.environ:
    Shim(json.loads(os.environ["MECAM_FAULT"])).install()

"""Files that are there in full or not at all: written beside their place, then moved into it."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import re
import secrets
import shutil
from collections.abc import Collection
from pathlib import Path
from typing import Any

TEMPORARY = (".mecam-", ".part")  # how the name of an unfinished file starts and ends
NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
SEAL = re.compile(rb',\n  "checksum": "([0-9a-f]{64})"\n}\n\Z')  # how a sealed JSON object ends
NO_FOLDER_SYNC = (errno.EINVAL, errno.ENOTSUP, errno.EACCES)  # some network file systems; Windows

# reading the mask means setting it, which a process with several threads should do once
_UMASK = os.umask(0o077)
os.umask(_UMASK)


class RunError(RuntimeError):
    """A file of a run that cannot be written or read; the message names it and says what to do."""


def write_atomic(path: Path | str, data: bytes) -> None:
    """Put `data` in place of the file's content; a crash at any moment leaves the old content or the new one.

    While it is written the file is private to its owner; in place it has the permissions of any new file.
    """
    path = Path(path)
    temporary = path.parent / secrets.token_hex(8).join(TEMPORARY)
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0), 0o600)
        try:
            write_all(descriptor, data)
            os.chmod(temporary, 0o666 & ~_UMASK)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        os.replace(temporary, path)
        sync_folder(path.parent)
    except OSError as error:
        discard(temporary)
        raise refused(path, error, len(data)) from error
    except BaseException:
        discard(temporary)
        raise


def write_all(descriptor: int, data: bytes) -> None:
    """Write to the last byte: one call takes 2 GB at most, and less where the disk fills up."""
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(descriptor, rest) :]


def sync_folder(folder: Path) -> None:
    """Make the names in a folder durable: what was moved into it stays there after a power cut."""
    try:
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except OSError as error:
        if error.errno not in NO_FOLDER_SYNC:
            raise


def make_folder(folder: Path) -> None:
    """Make a folder and those above it, durably; one that is there already is fine."""
    try:
        if folder.is_dir():
            return
        make_folder(folder.parent)
        os.mkdir(folder)
        sync_folder(folder.parent)
    except FileExistsError as error:
        if not folder.is_dir():  # made by another process meanwhile
            raise RunError(f"{folder} is a file; a folder is needed there. Give another --out") from error
    except OSError as error:
        raise RunError(f"cannot make the folder {folder}: {error.strerror or error}") from error


def refused(path: Path, error: OSError, size: int) -> RunError:
    """The error for a write that the system refused."""
    if error.errno not in NO_ROOM:
        return RunError(f"cannot write {path}: {error.strerror or error}")
    free = ""
    with contextlib.suppress(OSError):
        free = f", {shutil.disk_usage(path.parent).free:,} free"
    return RunError(
        f"cannot write {path}: {error.strerror} ({size:,} bytes to write{free}). What was written before is "
        "intact: make room and run the same command again"
    )


def is_temporary(path: Path) -> bool:
    """Whether this is an unfinished file, of a writer that is at work or was killed."""
    return path.name.startswith(TEMPORARY[0]) and path.name.endswith(TEMPORARY[1])


def clean(folder: Path) -> None:
    """Remove the unfinished files that killed writers left; for the folder's only writer."""
    for path in folder.iterdir():
        if is_temporary(path):
            discard(path)


def encode_json(value: Any) -> bytes:
    """The value as indented JSON. NaN and infinity are written by name, as Python reads them: a loss may be one."""
    return (json.dumps(value, indent=2) + "\n").encode()


def seal(value: dict[str, Any]) -> bytes:
    """The object as indented JSON whose last entry is a checksum of what comes before it, byte for byte."""
    text = encode_json(value).removesuffix(b"\n}\n")
    return text + b',\n  "checksum": "' + digest(text).encode() + b'"\n}\n'


def read_sealed(path: Path, keys: Collection[str]) -> dict[str, Any]:
    """What was sealed in this file, checked; one without a checksum, of before there were any, has only these keys."""
    data = read_bytes(path)
    value = read_json(path, data)
    found = SEAL.search(data)
    if found and digest(data[: found.start()]) == found[1].decode():
        del value["checksum"]
    elif found or not set(value) <= set(keys):
        raise RunError(f"{path} is damaged: its content does not match its checksum")
    return value


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def read_bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise RunError(f"cannot read {path}: {error.strerror or error}") from error


def read_json(path: Path | str, data: bytes | None = None) -> dict[str, Any]:
    """The JSON object in a file, or in these bytes of it; anything else is a RunError that names the file."""
    path = Path(path)
    try:
        value = json.loads(read_bytes(path) if data is None else data)
    except (ValueError, RecursionError) as error:  # JSONDecodeError and UnicodeDecodeError are ValueErrors
        raise RunError(f"{path} is damaged: it is not JSON ({error})") from error
    if not isinstance(value, dict):
        raise RunError(f"{path} is damaged: it holds a {type(value).__name__}, not a JSON object")
    return value


def discard(path: Path) -> None:
    """Remove a file that nobody needs; one that stays does no harm."""
    with contextlib.suppress(OSError):
        os.unlink(path)

"""Write files so that they appear in full or not at all, and read them back. What fails raises RunError."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import secrets
import shutil
import stat
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

TEMPORARY = (".mecam-", ".part")  # prefix and suffix of an unfinished file
ABANDONED = 60.0  # seconds
NO_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
NO_MODES = (errno.EPERM, errno.ENOTSUP, errno.ENOSYS)  # FAT, some network file systems
NO_FOLDER_SYNC = (errno.EINVAL, errno.ENOTSUP, errno.EACCES)  # some network file systems; Windows
MOST_BYTES, MOST_JSON = 16 << 30, 256 << 20  # of a file that is read whole
# a link is not followed, and a FIFO does not block; 0 where the system lacks the flag
PLAIN = sum(getattr(os, flag, 0) for flag in ("O_NOFOLLOW", "O_NONBLOCK", "O_CLOEXEC"))

# reading the mask means setting it, which a process with several threads should do once
_UMASK = os.umask(0o077)
os.umask(_UMASK)


Write = Callable[[Path, bytes], None]  # replaces the content of a file


class RunError(RuntimeError):
    """A file or a run that cannot be written, read or used. The message names the file and what to do."""


def write_atomic(path: Path | str, data: bytes) -> None:
    """Replace the content of a file. A crash at any moment leaves the old content or the new one.

    The file is private to its owner while it is written. In place it has the permissions of any new file.
    """
    write_together({Path(path): data})


def write_together(contents: Mapping[Path, bytes], *, staging: Path | None = None) -> None:
    """Replace the content of several files, as `write_atomic` does. All are complete before the first is replaced.

    `staging` is the folder to write them in, on the same file system; by default that of each file.
    """
    complete: dict[Path, Path] = {}
    try:
        for path, data in contents.items():
            complete[path] = (staging or path.parent) / secrets.token_hex(8).join(TEMPORARY)
            with writing(path, len(data)):
                _write_new(complete[path], data)
        for path, temporary in complete.items():
            with writing(path, len(contents[path])):
                os.replace(temporary, path)
                sync_folder(path.parent)
        if staging is None:
            for path in {path.parent: path for path in contents}.values():
                _sweep(path)
    except BaseException:
        for temporary in complete.values():
            discard(temporary)
        raise


def _sweep(written: Path) -> None:
    """Remove the unfinished files of killed writers beside a new file: none has touched them for a minute."""
    with contextlib.suppress(OSError):
        now = written.lstat().st_mtime  # by the clock of the file system
        for path in written.parent.iterdir():
            if is_temporary(path) and path.lstat().st_mtime < now - ABANDONED:
                discard(path)


def _write_new(path: Path, data: bytes) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0), 0o600)
    try:
        write_all(descriptor, data)
        _open_up(path)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _open_up(path: Path) -> None:
    """Give the file the permissions of any new file, where the file system has some."""
    try:
        os.chmod(path, 0o666 & ~_UMASK)
    except OSError as cause:
        if cause.errno not in NO_MODES:
            raise


def write_all(descriptor: int, data: bytes, offset: int | None = None) -> None:
    """Write to the last byte: one call takes 2 GB at most, and less where the disk fills up."""
    rest = memoryview(data)
    while rest:
        place = None if offset is None else offset + len(data) - len(rest)
        rest = rest[os.write(descriptor, rest) if place is None else os.pwrite(descriptor, rest, place) :]


def make_folder(folder: Path) -> None:
    """Create a folder and its parents durably, unless it exists."""
    try:
        if folder.is_dir():
            return
        make_folder(folder.parent)
        os.mkdir(folder)
        sync_folder(folder.parent)
    except FileExistsError as cause:
        if not folder.is_dir():  # another process may have created it meanwhile
            raise RunError(f"{folder} is a file; a folder is needed there. Choose another place") from cause
    except OSError as cause:
        raise RunError(f"cannot make the folder {folder}: {cause.strerror or cause}") from cause


def sync_folder(folder: Path) -> None:
    """Make the names in a folder survive a power cut."""
    try:
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except OSError as cause:
        if cause.errno not in NO_FOLDER_SYNC:
            raise


@contextlib.contextmanager
def writing(path: Path, size: int | None = None) -> Iterator[None]:
    """Turn an OSError into an error that names the file. `size` is the number of bytes to write."""
    try:
        yield
    except OSError as cause:
        advice = _space_advice(path, size) if cause.errno in NO_SPACE else ""
        raise RunError(f"cannot write {path}: {cause.strerror or cause}{advice}") from cause


def _space_advice(path: Path, size: int | None) -> str:
    sizes = [] if size is None else [f"{size:,} bytes to write"]
    with contextlib.suppress(OSError):
        sizes.append(f"{shutil.disk_usage(path.parent).free:,} free")
    return f" ({', '.join(sizes)}). What was written before is intact: make room and run the same command again"


def is_temporary(path: Path) -> bool:
    """Return whether this is an unfinished file, of a running or a killed writer."""
    return path.name.startswith(TEMPORARY[0]) and path.name.endswith(TEMPORARY[1])


def discard(path: Path) -> None:
    """Remove a file that is not needed; a failure does no harm."""
    with contextlib.suppress(OSError):
        os.unlink(path)


def clean(folder: Path, remove: Callable[[Path], None] = discard) -> None:
    """Remove the unfinished files of killed writers. Only the sole writer of the folder may call it."""
    for path in folder.iterdir():
        if is_temporary(path):
            remove(path)


def encode_json(value: Any) -> bytes:
    """Encode as indented JSON. NaN and infinity are written by name, as Python reads them: a loss may be one."""
    return (json.dumps(value, indent=2) + "\n").encode()


def open_plain(path: Path | str, flags: int) -> int:
    """Open a regular file; the `opener` of `open`. A link, a FIFO, a device or a folder is an OSError."""
    try:
        descriptor = os.open(path, flags | PLAIN, 0o666)
    except OSError as cause:
        if cause.errno == errno.ELOOP or (cause.errno == errno.ENXIO and not Path(path).is_file()):
            raise OSError(cause.errno, "it is a link or a FIFO, not a regular file", str(path)) from cause
        raise
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "it is not a regular file", str(path))
    return descriptor


def read_bytes(path: Path, *, most: int = MOST_BYTES) -> bytes:
    """Return the content of a regular file of at most this size. Links are not followed."""
    with reading(path), open(path, "rb", opener=open_plain) as file:
        size = os.fstat(file.fileno()).st_size
        if size > most:
            raise RunError(f"{path} is refused: it has {size:,} bytes; at most {most:,} are read")
        return file.read()


@contextlib.contextmanager
def reading(path: Path) -> Iterator[None]:
    """Turn an OSError into an error that names the file."""
    try:
        yield
    except OSError as cause:
        raise RunError(f"cannot read {path}: {cause.strerror or cause}") from cause


def read_json(path: Path | str) -> dict[str, Any]:
    """Return the JSON object in a file."""
    data = read_bytes(Path(path), most=MOST_JSON)
    try:
        value = json.loads(data)
    except (ValueError, RecursionError) as cause:  # JSONDecodeError and UnicodeDecodeError are ValueErrors
        raise RunError(f"{path} is damaged: it is not JSON ({cause})") from cause
    if not isinstance(value, dict):
        raise RunError(f"{path} is damaged: it holds a {type(value).__name__}, not a JSON object")
    return value

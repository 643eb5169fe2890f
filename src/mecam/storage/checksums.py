"""Digests, and JSON objects that carry a checksum of their own bytes."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from mecam.storage.files import MOST_BYTES, MOST_JSON, RunError, open_plain, read_bytes

SEAL = re.compile(rb',\s+"checksum": "([0-9a-f]{64})"\s*}\n\Z')  # the end of a sealed object
BLOCK = 1 << 20


def digest(data: bytes) -> str:
    """Return the SHA-256 in hexadecimal."""
    return hashlib.sha256(data).hexdigest()


def digest_file(path: Path) -> str:
    """Return the SHA-256 of a file, read block by block. A file above MOST_BYTES is an OSError."""
    if path.lstat().st_size > MOST_BYTES:
        raise OSError(errno.EFBIG, f"it is larger than {MOST_BYTES:,} bytes", str(path))
    state = hashlib.sha256()
    for block in read_blocks(path):
        state.update(block)
    return state.hexdigest()


def digest_blocks(blocks: Iterable[bytes]) -> str:
    """Return the 128-bit BLAKE2b of blocks of bytes, in hexadecimal."""
    state = hashlib.blake2b(digest_size=16)
    for block in blocks:
        state.update(block)
    return state.hexdigest()


def read_blocks(path: Path, offset: int = 0, size: int | None = None) -> Iterator[bytes]:
    """Yield a file, or `size` bytes of it from `offset` on, block by block."""
    with open(path, "rb", opener=open_plain) as file:
        left = os.fstat(file.fileno()).st_size - offset if size is None else size
        file.seek(offset)
        while left > 0 and (block := file.read(min(BLOCK, left))):
            left -= len(block)
            yield block


def seal(value: Mapping[str, Any], before: bytes = b"", *, indent: bool = True) -> bytes:
    """Encode an object as JSON whose last entry is the checksum of `before` and of the bytes ahead of that entry."""
    text = json.dumps(value, indent=2 if indent else None).encode().removesuffix(b"}").removesuffix(b"\n")
    start, end = (b",\n  ", b"\n}\n") if indent else (b", ", b"}\n")
    return text + start + b'"checksum": "' + digest(before + text).encode() + b'"' + end


def unseal(data: bytes, before: bytes = b"") -> dict[str, Any]:
    """Return the sealed object without its checksum. Raise ValueError if the checksum is missing or wrong."""
    end = SEAL.search(data)
    if end is None or digest(before + data[: end.start()]) != end[1].decode():
        raise ValueError("its content does not match its checksum")
    value: dict[str, Any] = json.loads(data)
    del value["checksum"]
    return value


def read_sealed(path: Path) -> dict[str, Any]:
    """Return the sealed object in a file."""
    try:
        return unseal(read_bytes(path, most=MOST_JSON))
    except (ValueError, RecursionError) as cause:
        raise RunError(f"{path} is damaged: {cause}") from cause

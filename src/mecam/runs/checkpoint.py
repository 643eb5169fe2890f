"""Checkpoints: a crash during a save leaves the former checkpoint; loading verifies every byte.

    checkpoint/
      manifest.json                 the names of the other two files, with their SHA-256; written last
      tensors-000007.safetensors    every tensor
      tree-000007.json              everything else, and where the tensors belong

A save writes two files under a new number, then replaces the manifest: at that moment the checkpoint changes. Files
that the manifest does not name are removed before and after. The disk needs space for two checkpoints. There is no
pickle: loading a checkpoint runs no code from it.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mecam.runs._tensors import pack, unpack
from mecam.runs.claim import Writer
from mecam.storage.checksums import digest
from mecam.storage.files import RunError, clean, encode_json, read_bytes, read_json, reading

if TYPE_CHECKING:
    from torch import Tensor

MANIFEST = "manifest.json"
UNCLAIMED = Writer()
NUMBERED = re.compile(r"(?:tensors-(\d+)\.safetensors|tree-(\d+)\.json)")


def save(folder: Path | str, state: Any, writer: Writer = UNCLAIMED) -> None:
    """Replace the checkpoint in this folder. If that fails, the former one is still there.

    A state consists of dicts (keys str or int), lists, tuples, tensors, numpy arrays, int, float, str, bytes, bool and
    None. It is restored exactly, with its types. Tensors are restored on the CPU, each with memory of its own.
    """
    from mecam.runs._tree import encode  # which imports torch

    folder = Path(folder)
    tensors: dict[str, Tensor] = {}
    tree = json.dumps(encode(state, tensors)).encode()
    packed = pack(tensors)
    writer.make_folder(folder)
    sweep(folder, writer)
    number = 1 + max((_number(path) for path in folder.iterdir()), default=0)
    parts = {
        "tensors": _write(folder / f"tensors-{number:06d}.safetensors", packed, writer),
        "tree": _write(folder / f"tree-{number:06d}.json", tree, writer),
    }
    writer.write(folder / MANIFEST, encode_json({"parts": parts, "sha256": digest(_canonical(parts))}))
    sweep(folder, writer)


def load(folder: Path | str) -> Any:
    """Return the state of the last complete checkpoint. A RunError names a missing or damaged file."""
    from mecam.runs._tree import decode

    folder = Path(folder)
    parts = _parts(folder)
    packed, text = (_verified(folder / parts[part]["name"], parts[part]) for part in ("tensors", "tree"))
    try:
        tensors, _ = unpack(packed)
        return decode(json.loads(text), tensors)
    except (ValueError, LookupError, TypeError, AttributeError, RuntimeError, RecursionError, ArithmeticError) as error:
        raise RunError(
            f"the checkpoint {folder} is complete but not understood ({type(error).__name__}: {error}); another "
            "version of mecam may have written it. Remove that folder to train from the start"
        ) from error


def exists(folder: Path | str) -> bool:
    """Return whether the folder holds a complete checkpoint."""
    return (Path(folder) / MANIFEST).exists()


def _write(path: Path, data: bytes, writer: Writer) -> dict[str, Any]:
    writer.write(path, data)
    return {"name": path.name, "bytes": len(data), "sha256": digest(data)}


def _parts(folder: Path) -> dict[str, Any]:
    manifest = read_json(folder / MANIFEST)
    parts = manifest.get("parts")
    if not isinstance(parts, dict) or manifest.get("sha256") != digest(_canonical(parts)):
        raise _damage_error(folder / MANIFEST, "its content does not match its checksum")
    for part in ("tensors", "tree"):  # no name may lead elsewhere, whoever wrote it
        entry = parts.get(part)
        if not isinstance(entry, dict) or not NUMBERED.fullmatch(str(entry.get("name"))):
            raise _damage_error(folder / MANIFEST, f"it names no file of this folder for the {part}")
    return parts


def _verified(path: Path, part: dict[str, Any]) -> bytes:
    with reading(path):
        size = path.lstat().st_size
    data = read_bytes(path) if size == part.get("bytes") else b""  # a file of another size is not read
    if len(data) != size or digest(data) != part.get("sha256"):
        raise _damage_error(path, f"its content does not match its checksum in {MANIFEST}")
    return data


def _damage_error(path: Path, reason: str) -> RunError:
    return RunError(f"{path} is damaged: {reason}. Remove the folder {path.parent} to train from the start")


def sweep(folder: Path, writer: Writer) -> None:
    """Remove the files of killed or failed saves, and those that the last save replaced."""
    clean(folder, writer.remove)
    try:
        named = {part["name"] for part in _parts(folder).values()} if exists(folder) else set()
    except RunError:  # which files are needed is unknown
        return
    for path in folder.iterdir():
        if _number(path) and path.name not in named:
            writer.remove(path)


def _number(path: Path) -> int:
    """Return the number in the name of a checkpoint's file; 0 for any other file."""
    match = NUMBERED.fullmatch(path.name)
    return int(match[1] or match[2]) if match else 0


def _canonical(parts: dict[str, Any]) -> bytes:
    return json.dumps(parts, sort_keys=True).encode()

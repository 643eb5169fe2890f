"""Files of runs and stores, damaged one at a time: what is read is an error that names the file, or is correct."""

import json
import random
import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from mecam.benchmark.render import table
from mecam.data import _writing
from mecam.data.domains import DataError
from mecam.data.pack import pack
from mecam.data.shapes import shapes
from mecam.data.store import Store
from mecam.progress import Event
from mecam.recipe import Recipe
from mecam.runs import RunError, RunFolder
from mecam.storage import claims
from mecam.storage.publishing import leftovers
from mecam.training import loop

ALLOWED = (RunError, DataError)
INSTEAD = ("manifest.json", "done.json", "store.json", "run.json")  # hold checksums of others, or have theirs elsewhere
WAYS = ("truncated", "emptied", "one bit", "some bytes", "zeros", "appended", "swapped", "removed")
DATA = shapes(per_class=2)
Reader = Callable[[Path], bytes]


@dataclass
class Findings:
    """What came of the mutations: counts by file and way, and every wrong answer in words."""

    files: Counter[str] = field(default_factory=Counter)
    ways: Counter[str] = field(default_factory=Counter)
    answers: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)

    @property
    def mutations(self) -> int:
        return sum(self.files.values())


@dataclass(frozen=True)
class Patient:
    """A healthy folder, another of its kind to swap files with, and the ways in which it is read."""

    name: str
    folder: Path
    other: Path
    readers: dict[str, Reader]

    def files(self) -> list[str]:
        return sorted(str(path.relative_to(self.folder)) for path in self.folder.rglob("*") if path.is_file())


def mutate(draw: random.Random, way: str, content: bytes, other: bytes) -> bytes | None:
    """The content after such a damage; None: removed."""
    if way == "removed":
        return None
    if way == "emptied":
        return b""
    if way == "swapped":
        return other
    if way == "appended":
        return content + draw.randbytes(draw.randint(1, 64))
    if not content:
        return b"x"
    start = draw.randrange(len(content))
    if way == "truncated":
        return content[:start]
    changed = bytearray(content)
    if way == "one bit":
        changed[start] ^= 1 << draw.randrange(8)
    else:
        end = min(len(content), start + draw.randint(1, 512))
        changed[start:end] = bytes(end - start) if way == "zeros" else draw.randbytes(end - start)
    return bytes(changed)


def examine(
    patient: Patient,
    scratch: Path,
    mutations: int,
    draw: random.Random,
    findings: Findings,
    ways: Sequence[str] = WAYS,
) -> None:
    """Damage one file after another, each time in a fresh copy, and read in every way."""
    healthy = {}
    for name, read in patient.readers.items():
        _copy(patient.folder, scratch)
        healthy[name] = read(scratch)
    files = patient.files()
    for number in range(mutations):
        file, way = files[number % len(files)], draw.choice(ways)
        content, other = (patient.folder / file).read_bytes(), patient.other / file
        damaged = mutate(draw, way, content, other.read_bytes() if other.exists() else b"")
        if damaged == content or (file, way) == ("done.json", "removed"):  # a run without it is an unfinished one
            continue
        findings.files[f"{patient.name}: {file}"] += 1
        findings.ways[way] += 1
        for name, read in patient.readers.items():
            _copy(patient.folder, scratch)
            (scratch / file).unlink()
            if damaged is not None:
                (scratch / file).write_bytes(damaged)
            answer = _answer(read, scratch, file, healthy[name])
            findings.answers[answer if answer in ("error", "correct") else "wrong"] += 1
            if answer not in ("error", "correct"):
                findings.wrong.append(f"{patient.name}, {file} {way}, {name}: {answer}")


def _answer(read: Reader, folder: Path, file: str, healthy: bytes) -> str:
    try:
        found = read(folder)
    except ALLOWED as error:
        others = (".json", "holds a run of another recipe")
        named = Path(file).name in str(error) or (Path(file).name in INSTEAD and any(w in str(error) for w in others))
        return "error" if named else f"an error that does not name it: {error}"
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "correct" if found == healthy else "another answer, and no error"


def _copy(source: Path, target: Path) -> None:
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(source, target)


def patients(root: Path) -> Iterator[Patient]:
    """Finished and unfinished runs, stores of pixels and of files, and stores that are being packed."""
    recipes = [
        Recipe(target="art", optimizer="mecam", averaging="swad", track=2, seed=seed, steps=6,
               evaluate_every=2, batch=2, image_size=8)
        for seed in (0, 1)
    ]  # fmt: skip
    for recipe in recipes:
        loop.train(recipe, root / "done", device="cpu", data=DATA)
        _stop_halfway(recipe, root / "halfway")
    done, other = (root / "done" / recipe.run_id for recipe in recipes)
    yield Patient("finished run", done, other, _finished_readers(root, recipes[0]))
    halfway, other = (root / "halfway" / recipe.run_id for recipe in recipes)
    yield Patient("unfinished run", halfway, other, {"go on": _going_on(root, recipes[0])})
    for number in (0, 1):
        _images(root / f"images {number}", number)
        for mode in ("decoded", "encoded"):
            pack(root / f"images {number}", root / f"{mode} {number}", mode=mode)  # type: ignore[arg-type]
    for mode in ("decoded", "encoded"):
        readers = {"read": lambda path: _read_store(Store(path, threads=1)), "verify": _verify_store}
        yield Patient(f"{mode} store", root / f"{mode} 0", root / f"{mode} 1", readers)
    for number in (0, 1):
        _pack_halfway(root / f"images {number}", root / f"packing {number}")
    yield Patient("half a store", root / "packing 0", root / "packing 1", {"go on": _packing_on(root / "images 0")})


def _finished_readers(root: Path, recipe: Recipe) -> dict[str, Reader]:
    def tabulate(path: Path) -> bytes:
        out = root / "table"
        _copy(path, out / recipe.run_id)
        text, notes = table(out, form="json")
        problems = [note for note in notes if "left out" in note]  # others: the accuracy is near chance
        if problems:
            raise RunError(" ".join(problems))
        return text.encode()

    def verify(path: Path) -> bytes:
        RunFolder(path).verify()
        return b"as written"

    return {
        "run": lambda path: _bytes(RunFolder(path).read_run()),
        "result": lambda path: _bytes(RunFolder(path).read_result()),
        "sessions": lambda path: _bytes(RunFolder(path).read_sessions()),
        "records": lambda path: _bytes(RunFolder(path).read_records()),
        "model": lambda path: _bytes(RunFolder(path).read_model()),
        "predictions": lambda path: _bytes(RunFolder(path).read_predictions()),
        "table": tabulate,
        "verify": verify,
    }


def _going_on(root: Path, recipe: Recipe) -> Reader:
    """The run goes on to its end; what it leaves are the bytes of the undisturbed one."""

    def go_on(path: Path) -> bytes:
        out = root / "going on"
        _copy(path, out / recipe.run_id)
        try:
            folder = loop.train(recipe, out, device="cpu", data=DATA)
        except RunError as error:
            raise RunError(str(error).replace(str(out / recipe.run_id), str(path))) from error
        names = ("run.json", "records.jsonl", "tracking.jsonl", "model.safetensors", "done.json")
        return b"".join((folder.path / name).read_bytes() for name in names)

    return go_on


class _Enough(Exception):
    pass


def _stop_halfway(recipe: Recipe, out: Path) -> None:
    def stop(event: Event) -> None:
        if event.done == 4:
            raise _Enough

    every, loop.SAVE_EVERY = loop.SAVE_EVERY, 0.0
    with suppress(_Enough):
        loop.train(recipe, out, device="cpu", data=DATA, progress=stop)
    loop.SAVE_EVERY = every


def _images(root: Path, seed: int) -> None:
    draw = np.random.default_rng(seed)
    for domain in ("a", "b"):
        for label in ("x", "y"):
            (root / domain / label).mkdir(parents=True)
            for number in range(6):
                pixels = draw.integers(0, 256, (16, 16, 3), dtype=np.uint8)
                Image.fromarray(pixels).save(root / domain / label / f"{number}.png")


def _pack_halfway(images: Path, out: Path) -> None:
    """What lies beside the place of a store when packing was stopped."""

    def stop(event: Event) -> None:
        if event.task == "packing" and event.done >= 12:
            raise _Enough

    size, _writing.SHARD_BYTES = _writing.SHARD_BYTES, 2000
    out.mkdir()
    with suppress(_Enough):
        pack(images, out / "store", workers=1, progress=stop)
    if not leftovers(out / "store"):  # it was done before it was stopped: as if killed before the last move
        shutil.rmtree(out)
        _pack_all_but_the_move(images, out)
    [work] = leftovers(out / "store")
    work.rename(out / f".store.packing-{0:016x}")  # the same name in both folders, to swap files
    assert leftovers(out / "store"), "a successor finds it"
    _writing.SHARD_BYTES = size


def _pack_all_but_the_move(images: Path, out: Path) -> None:
    move = _writing.publishing.publish

    def stop(*_: object) -> None:
        raise _Enough

    out.mkdir()
    _writing.publishing.publish = stop  # type: ignore[assignment]
    with suppress(_Enough):
        pack(images, out / "store", workers=1)
    _writing.publishing.publish = move


def _packing_on(images: Path) -> Reader:
    def go_on(path: Path) -> bytes:
        size, _writing.SHARD_BYTES = _writing.SHARD_BYTES, 2000
        stale, claims.STALE = claims.STALE, 0.2  # a damaged claim is held until it is stale
        try:
            return _read_store(pack(images, path / "store", workers=1))
        finally:
            _writing.SHARD_BYTES, claims.STALE = size, stale

    return go_on


def _verify_store(path: Path) -> bytes:
    Store(path).verify()
    return b"as written"


def _read_store(store: Store) -> bytes:
    """All that a store tells."""
    parts: list[Any] = [store.name, store.domains, store.classes, store.size, store.fingerprint, len(store)]
    for domain in range(len(store.domains)):
        labels = store.labels(domain)
        parts += [labels.tolist(), store.aspects(domain).tolist()]
        parts += [store.sample_name(domain, index) for index in range(len(labels))]
        parts.append(store.images(domain, np.arange(len(labels))).numpy().tobytes().hex())
    return _bytes(parts)


def _bytes(value: Any) -> bytes:
    def plain(part: Any) -> Any:
        return [str(part.dtype), list(part.shape), part.flatten().tolist()] if isinstance(part, torch.Tensor) else part

    return json.dumps(value, default=plain, sort_keys=True).encode()


def fuzz(root: Path, mutations: int, seed: int) -> Findings:
    """So many mutations, shared evenly by all kinds of folders."""
    draw, findings = random.Random(seed), Findings()
    found = list(patients(root))
    for patient in found:
        examine(patient, root / "scratch", -(-mutations // len(found)), draw, findings)
    return findings

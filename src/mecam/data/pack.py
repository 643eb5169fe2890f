"""Pack a folder of images into a store: decode once, then read as fast as the disk.

Threads decode (Pillow releases the GIL) and write in parallel, in little memory. A store appears in full or not at all.
After a kill or a full disk the same call resumes. A second process that packs the same data waits for the first.
`mecam.data.store` describes what is stored.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO, Literal

import numpy as np
from numpy.typing import NDArray

from mecam.data._writing import Picture, Plan, Unreadable, counted, write
from mecam.data.decode import Resampled, Room, measure, resample
from mecam.data.domains import DataError
from mecam.data.duplicates import Duplicates, Pictures, look
from mecam.data.folder import hidden, scan
from mecam.data.scan import Scan
from mecam.data.store import Mode, Skipped, Store, available_cores
from mecam.progress import Progress, silent

SIDE = 320  # pixels per side where images differ in size or are larger
PIXEL_LIMIT = 8 << 30  # bytes of pixels above which "auto" stores the files' own bytes
IMAGES_AT_ONCE = 512


def pack(
    source: Scan | Path | str,
    out: Path | str,
    *,
    workers: int | None = None,
    mode: Mode | Literal["auto"] = "auto",
    skip_unreadable: bool = False,
    side: int = SIDE,
    name: str | None = None,
    progress: Progress | None = None,
) -> Store:
    """Return the store at `out` of root/<domain>/<class>/<image>. Pack the folder unless the store exists.

    Args:
        source: the folder, or its `mecam.data.folder.scan`.
        workers: threads that decode; all cores if not given.
        mode: "decoded" stores pixels; "encoded" the files' own bytes, decoded whenever an image is read; "auto"
            chooses "decoded" up to PIXEL_LIMIT bytes of pixels.
        skip_unreadable: leave out images that cannot be read, and list them in the store's `skipped`; otherwise one
            error names them all. Skipping after such an error is quick: what was packed is kept.
        side: images of domains in which they differ in size, or are larger, are stored with side x side pixels.
        name: the data set's name; the folder's if not given.
        progress: called about ten times per second, from the calling thread.
    """
    if mode not in ("auto", "decoded", "encoded"):
        raise ValueError(f'mode must be "auto", "decoded" or "encoded", got {mode!r}')
    if side < 1:
        raise ValueError(f"side must be at least 1 pixel, got {side}")
    report, threads = progress or silent, workers or available_cores()
    folder = source if isinstance(source, Scan) else scan(Path(source))
    require_outside(Path(out), folder.source)
    reader = _Reader(folder, side, mode, threads, report)
    name = name or folder.name
    plan = Plan(
        name=name,
        domains=folder.domains,
        classes=folder.classes,
        counts=tuple(map(len, folder.files)),
        names=reader.names,
        labels=np.concatenate([folder.labels(domain) for domain in range(len(folder.domains))]),
        mode=reader.mode,
        size=reader.size,
        sizes=reader.sizes,
        lengths=reader.lengths(),
        source=f"{reader.digest} {reader.mode} {reader.sizes_in_words()} {name}",
        read=reader.read,
    )
    return write(plan, Path(out), skip_unreadable=skip_unreadable, threads=threads, report=report)


def inspect(
    folder: Scan, *, workers: int | None = None, progress: Progress | None = None
) -> tuple[tuple[Skipped, ...], Duplicates]:
    """Decode each image as `pack` does. Return those that cannot be read, and duplicates among the others."""
    report, threads = progress or silent, workers or available_cores()
    reader = _Reader(folder, SIDE, "decoded", threads, report)

    def read(image: int) -> Skipped | tuple[int, bytes, NDArray[np.uint8]]:
        try:
            picture = reader.read(image)
        except Unreadable as error:
            return Skipped(reader.names[image], str(error))
        return (
            image,
            picture.digest,
            look(np.frombuffer(picture.content, np.uint8).reshape(3, *reader.image_sizes[image])),
        )

    problems: list[Skipped] = []
    seen: list[tuple[int, bytes, NDArray[np.uint8]]] = []
    images = range(len(reader.names))
    with ThreadPoolExecutor(threads) as executor:
        for start in images[::IMAGES_AT_ONCE]:
            report(counted("checking", start, len(images), len(problems)))
            for found in executor.map(read, images[start : start + IMAGES_AT_ONCE]):
                if isinstance(found, Skipped):
                    problems.append(found)
                else:
                    seen.append(found)
    if not seen:
        return tuple(problems), Duplicates()
    kept, digests, looks = zip(*seen, strict=True)
    domains = np.repeat(np.arange(len(folder.domains)), list(map(len, folder.files)))
    labels = np.concatenate([folder.labels(domain) for domain in range(len(folder.domains))])
    pictures = Pictures(
        name=lambda place: reader.names[kept[place]],
        domains=domains[list(kept)],
        labels=labels[list(kept)],
        digests=np.frombuffer(b"".join(digests), np.uint64),
        looks=np.stack(looks),
    )
    return tuple(problems), pictures.duplicates()


def listing_digest(folder: Scan) -> str:
    """Return a digest of the names, labels, sizes and modification times of the images."""
    return _listing(folder)[0]


def require_outside(out: Path, root: Path) -> None:
    """Refuse a place inside of a folder of images, where what is written would be read as images."""
    place, data = Path(os.path.realpath(out)), Path(os.path.realpath(root))
    if place == data or (data in place.parents and not any(map(hidden, place.relative_to(data).parts))):
        raise DataError(f"{out} lies in {root}, and would be read as images; give an --out outside")


def _listing(folder: Scan) -> tuple[str, NDArray[np.int64]]:
    """Return the digest, and size (-1: unknown) and modification time of each image."""
    content = folder.domains, folder.classes, folder.file_labels
    digest = hashlib.blake2b(repr(content).encode("utf-8", "surrogateescape"), digest_size=16)
    states = []
    for file in folder.paths():
        size, changed = -1, 0
        with contextlib.suppress(OSError):  # reading the file will report the problem
            size, changed = _state(os.stat(folder.root / file))
        states.append((size, changed))
        digest.update(f"{file}\0{size}\0{changed}\n".encode("utf-8", "surrogateescape"))
    return digest.hexdigest(), np.array(states, dtype=np.int64).reshape(-1, 2)


def _state(status: os.stat_result) -> tuple[int, int]:
    return status.st_size, status.st_mtime_ns


class _Reader:
    """Read the images of a folder, for all threads: they share the limit on pixels decoded at the same time."""

    def __init__(self, folder: Scan, side: int, mode: Mode | Literal["auto"], threads: int, report: Progress) -> None:
        self.names = folder.paths()
        self.digest, self._states = _listing(folder)
        # of each domain on its own, so that one domain has no part in what is stored for another
        common = [_common_size(folder.root, files, side, threads, report) for files in folder.files]
        self.sizes = tuple(size or (side, side) for size in common)
        self.size = self.sizes[0] if len(set(self.sizes)) == 1 else (side, side)
        self.image_sizes = [size for size, files in zip(self.sizes, folder.files, strict=True) for _ in files]
        self._pixel_bytes = np.array([3 * height * width for height, width in self.image_sizes])
        if mode == "auto":
            mode = "decoded" if self._pixel_bytes.sum() <= PIXEL_LIMIT else "encoded"
        self.mode: Mode = mode
        self._root, self._room = folder.root, Room()

    def lengths(self) -> NDArray[np.int64]:
        """Return the stored bytes of each image."""
        return self._pixel_bytes if self.mode == "decoded" else self._states[:, 0].clip(min=0)

    def sizes_in_words(self) -> str:
        each = [f"{height}x{width}" for height, width in self.sizes]
        return each[0] if len(set(each)) == 1 else " ".join(each)

    def read(self, image: int) -> Picture:
        name = self.names[image]
        try:
            with (self._root / name).open("rb") as file:
                self._require_unchanged(image, file)
                resampled = self._resample(image, file)
                file.seek(0)  # read a second time: its bytes beside its pixels would take too much memory
                digest = hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=8)).digest()
                content = resampled.pixels.transpose(2, 0, 1).tobytes()
                if self.mode == "encoded":
                    file.seek(0)
                    content = file.read()
                self._require_unchanged(image, file)
        except OSError as error:
            raise Unreadable(f"{name} cannot be read: {error.strerror}") from error
        return Picture(content, resampled.width, resampled.height, digest)

    def _resample(self, image: int, file: IO[bytes]) -> Resampled:
        try:
            with self._room.for_image(file):
                return resample(file, name=self.names[image], size=self.image_sizes[image])
        except DataError as error:
            self._require_unchanged(image, file)
            raise Unreadable(str(error)) from error

    def _require_unchanged(self, image: int, file: IO[bytes]) -> None:
        if _state(os.fstat(file.fileno())) != tuple(self._states[image]):
            path = self._root / self.names[image]
            raise DataError(f"{path} changed while it was packed; pack again when nothing changes it")


def _common_size(root: Path, names: Sequence[str], side: int, threads: int, report: Progress) -> tuple[int, int] | None:
    """Return the height and width of all images; None if they differ or exceed `side`."""
    common: set[tuple[int, int]] = set()
    with ThreadPoolExecutor(threads) as executor:
        for start in range(0, len(names), IMAGES_AT_ONCE):
            report(counted("measuring", start, len(names)))
            measured = executor.map(lambda name: _measure(root / name, side), names[start : start + IMAGES_AT_ONCE])
            common.update(size for size in measured if size is not None)
            if len(common) > 1 or any(max(size) > side for size in common):
                return None
    return next(iter(common), None)


def _measure(image: Path | IO[bytes], side: int) -> tuple[int, int] | None:
    """Return height and width, upright if they are at most `side`; None if decoding will fail."""
    try:
        return measure(image, upright_up_to=side)
    except Exception:  # decoders raise anything on damaged files
        return None

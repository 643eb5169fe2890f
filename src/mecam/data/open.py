"""Open data by name or path: `shapes`, a known benchmark, a store, a folder of images."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path

from mecam.data import cached, known, shapes, used
from mecam.data.domains import DataError, DomainSet
from mecam.data.folder import scan
from mecam.data.known import KNOWN, Known
from mecam.data.pack import listing_digest, pack
from mecam.data.scan import Scan
from mecam.data.store import Store, is_store
from mecam.data.table import SUFFIXES, is_table
from mecam.near import hint, plain
from mecam.progress import Event, Progress
from mecam.storage.files import RunError
from mecam.storage.publishing import sweep

SHAPES = "shapes"
NAMES = (SHAPES, *KNOWN)
CACHE, ROOT = "MECAM_CACHE", "MECAM_DATA"


def open_data(
    name_or_path: str | Path,
    *,
    cache: Path | None = None,
    skip_unreadable: bool = False,
    layout: str | None = None,
    domain_from: str | None = None,
    allow_missing_classes: bool = False,
    progress: Progress | None = None,
) -> DomainSet:
    """Open the data set of this name or at this path.

    "shapes" is the embedded set. A path that exists is a store, a folder root/<domain>/<class>/<image>, or a CSV or
    Parquet file with columns path, label and perhaps domain. A known benchmark, in any spelling, is a folder in
    $MECAM_DATA. Images are packed into the cache on first use, and again whenever a file has changed
    (`mecam.data.cached`).

    Args:
        cache: folder of packed data; default: $MECAM_CACHE or ~/.cache/mecam.
        skip_unreadable: as in `pack`.
        progress: as in `pack`; also gets a warning of what is ignored in a folder.
        layout, domain_from, allow_missing_classes: as in `mecam.data.folder.scan`.
    """
    given = {"layout": layout, "domain_from": domain_from}
    if str(name_or_path) == SHAPES:
        _refuse(given, "the embedded data set has fixed domains; leave this option out")
        return shapes.shapes()
    cache = cache_folder() if cache is None else Path(cache)
    path, name = _find(name_or_path)
    if is_store(path):
        _refuse(given, f"{path} is a store, whose domains are fixed; give this option to mecam data pack")
        return _noted(cache, path, Store(path))
    images = scan(path, layout=layout, domain_from=domain_from, allow_missing_classes=allow_missing_classes)
    if progress is not None and images.ignored:
        progress(Event(str(name_or_path), text=_first(images), kind="warning"))
    name = name or images.name
    found = cached.find(images, _place(cache, name, images))
    try:
        if is_store(found.path):
            store = Store(found.path)
            if skip_unreadable or not store.skipped:
                sweep(found.path)
                return _noted(cache, path, store)
        store = pack(images, found.path, name=name, skip_unreadable=skip_unreadable, progress=progress)
        found.note()
        return _noted(cache, path, store)
    except (RunError, PermissionError) as error:
        raise DataError(
            f"{error}. It is in the cache, {cache}: set ${CACHE} to a folder that can be written"
        ) from error


def _noted(cache: Path, path: Path, store: Store) -> Store:
    used.note(cache, path, store.fingerprint)
    return store


def _first(images: Scan) -> str:
    """Return the first note on ignored files, and the command that shows the rest."""
    first, *others = images.ignored
    command = f"mecam data check {shlex.quote(str(images.source))}"
    return f"{first}, and {len(others)} more: {command}" if others else first


def _refuse(given: Mapping[str, str | None], why: str) -> None:
    """Refuse settings of folders for data that is not a folder."""
    for name, value in given.items():
        if value is not None:
            raise DataError(f"{name}={value} is for folders of images: {why}")


def stale(images: Scan) -> Sequence[str]:
    """Return the images with other content than their store in the cache, and the same names, sizes and times.

    All files are read. The next `open_data` packs them again.
    """
    return cached.find(images, _place(cache_folder(), images.name, images), whole=True).changed


def _place(cache: Path, name: str, images: Scan) -> Path:
    """Return the path of the first store of a folder with these names, sizes and modification times."""
    return cache / "stores" / f"{name}-{listing_digest(images)}"


def cache_folder() -> Path:
    """Return $MECAM_CACHE or ~/.cache/mecam. A DataError if there is no home folder."""
    return expanded(os.environ.get(CACHE) or "~/.cache/mecam", f"set ${CACHE} to a folder for packed data")


def expanded(path: Path | str, advice: str = "give the whole path") -> Path:
    """Return the path with the home folder in place of ~. A DataError if there is none."""
    try:
        return Path(path).expanduser()
    except RuntimeError as error:
        raise DataError(f"{path}: there is no such home folder; {advice}") from error


def locate(name_or_path: str | Path) -> Path:
    """Return the path of the data of this name, the embedded set excepted; nothing is read."""
    return _find(name_or_path)[0]


def _find(name_or_path: str | Path) -> tuple[Path, str | None]:
    """Return the path of the data, and its name if it is a known benchmark."""
    path = expanded(name_or_path)
    if path.is_dir() or is_table(path):
        return path, None
    if isinstance(name_or_path, Path) or os.sep in name_or_path:
        what = "no such table" if path.suffix.lower() in SUFFIXES else "no folder"
        raise DataError(f"there is {what} {path}; give a folder of images, a store, or one of {', '.join(NAMES)}")
    if not known.is_known(name_or_path):
        near = hint(name_or_path, NAMES)
        end = "" if near.endswith("?") else "."
        raise DataError(
            f"there is no data set and no folder {name_or_path!r}; {near}{end} Otherwise give the path of a folder of "
            "images or of a store"
        )
    benchmark = known.find(name_or_path)
    return _benchmark(benchmark), benchmark.name


def _benchmark(benchmark: Known) -> Path:
    base = expanded(os.environ[ROOT], f"set ${ROOT} to another one") if os.environ.get(ROOT) else None
    where = f"get it ({benchmark.source}), unpacked as {benchmark.name}/<domain>/<class>/<image>"
    if base is None:
        raise DataError(
            f"{benchmark.name} is not part of mecam: {where}, and set ${ROOT} to the folder that holds "
            f"{benchmark.name}, or give the path of {benchmark.name} itself"
        )
    if not base.is_dir():
        raise DataError(f"{base}, where {benchmark.name} is looked for, is not a folder; set ${ROOT} to one that is")
    for folder in sorted(base.iterdir()):
        if folder.is_dir() and plain(folder.name) == plain(benchmark.name):
            return folder
    raise DataError(f"there is no folder {benchmark.name} in {base}; {where}, or give its path")

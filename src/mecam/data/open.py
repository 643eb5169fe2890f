"""Open data by name or path: `shapes`, a known benchmark, a store, a folder of images."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from pathlib import Path

from mecam.data import known, shapes
from mecam.data._writing import CannotWriteError
from mecam.data.domains import DataError, DomainSet
from mecam.data.folder import Scan, scan
from mecam.data.known import KNOWN, Known
from mecam.data.pack import OnError, listing_digest, pack, pack_set
from mecam.data.store import Store, is_store
from mecam.near import hint, plain
from mecam.progress import Progress

SHAPES = "shapes"
NAMES = (SHAPES, *KNOWN)
CACHE, ROOT = "MECAM_CACHE", "MECAM_DATA"


def open_data(
    name_or_path: str | Path,
    *,
    root: Path | None = None,
    cache: Path | None = None,
    workers: int | None = None,
    on_error: OnError = "refuse",
    progress: Progress | None = None,
    scanned: Callable[[Scan], None] | None = None,
) -> DomainSet:
    """Open the data set of this name or at this path.

    "shapes" is the embedded set. A path that exists is a store or a folder root/<domain>/<class>/<image>. A known
    benchmark, in any spelling, is a folder in `root` (default: $MECAM_DATA). A folder is packed into the cache on first
    use, and again whenever one of its files has changed.

    Args:
        cache: folder of packed data; default: $MECAM_CACHE or ~/.cache/mecam.
        workers, on_error, progress: as in `pack`.
        scanned: called with the scan of a folder.
    """
    cache = cache_folder() if cache is None else Path(cache)
    if str(name_or_path) == SHAPES:
        return _shapes(cache)
    path, name = _find(name_or_path, root)
    if is_store(path):
        return Store(path)
    images = scan(path)
    if scanned is not None:
        scanned(images)
    name = name or images.name
    out = cache / "stores" / f"{name}-{listing_digest(images)}"
    try:
        if is_store(out):
            store = Store(out)
            if on_error == "skip" or not store.skipped:
                return store
        return pack(images, out, name=name, workers=workers, on_error=on_error, progress=progress)
    except (CannotWriteError, PermissionError) as error:
        raise DataError(
            f"{error}. It is in the cache, {cache}: set ${CACHE} to a folder that can be written"
        ) from error


def cache_folder() -> Path:
    """Return $MECAM_CACHE or ~/.cache/mecam."""
    return Path(os.environ.get(CACHE) or Path.home() / ".cache" / "mecam").expanduser()


def _shapes(cache: Path) -> DomainSet:
    """Open the embedded set; it is drawn again after a change of this package's code."""
    digest = hashlib.blake2b(digest_size=16)
    try:
        for source in sorted(Path(__file__).parent.glob("*.py")):
            digest.update(source.read_bytes())
        out = cache / "stores" / f"{SHAPES}-{digest.hexdigest()}"
        return Store(out) if is_store(out) else pack_set(shapes.shapes(), out)
    except (OSError, DataError):  # no writable or intact cache: drawing takes a second
        return shapes.shapes()


def locate(name_or_path: str | Path) -> Path:
    """Return the path of the data of this name, the embedded set excepted; nothing is read."""
    return _find(name_or_path, None)[0]


def _find(name_or_path: str | Path, root: Path | None) -> tuple[Path, str | None]:
    """Return the path of the data, and its name if it is a known benchmark."""
    path = Path(name_or_path).expanduser()
    if path.is_dir():
        return path, None
    if isinstance(name_or_path, Path) or os.sep in name_or_path:
        raise DataError(f"there is no folder {path}; give a folder of images, a store, or one of {', '.join(NAMES)}")
    if not known.is_known(name_or_path):
        near = hint(name_or_path, NAMES)
        end = "" if near.endswith("?") else "."
        raise DataError(
            f"there is no data set and no folder {name_or_path!r}; {near}{end} Otherwise give the path of a folder of "
            "images or of a store"
        )
    benchmark = known.find(name_or_path)
    base = root or (Path(os.environ[ROOT]).expanduser() if os.environ.get(ROOT) else None)
    return _benchmark(benchmark, base), benchmark.name


def _benchmark(benchmark: Known, base: Path | None) -> Path:
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

"""Any data by name or path: `shapes`, a known benchmark, a store, a folder of images."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from difflib import get_close_matches
from pathlib import Path

from mecam.data import known, shapes
from mecam.data._journal import CannotWriteError
from mecam.data.domains import DataError, DomainSet
from mecam.data.folder import Scan, scan
from mecam.data.known import KNOWN, Known
from mecam.data.pack import OnError, Report, listing_digest, pack, pack_set
from mecam.data.store import Store, is_store
from mecam.near import plain

SHAPES = "shapes"
CACHE, ROOT = "MECAM_CACHE", "MECAM_DATA"


def open_data(
    name_or_path: str | Path,
    *,
    root: Path | None = None,
    cache: Path | None = None,
    workers: int | None = None,
    on_error: OnError = "refuse",
    progress: Report | None = None,
    scanned: Callable[[Scan], None] | None = None,
) -> DomainSet:
    """The data set of this name, or at this path.

    "shapes" is the embedded set. A path that exists is a store or a folder root/<domain>/<class>/<image>. The name of a
    known benchmark, in any spelling, is looked for in `root` (else in $MECAM_DATA). A folder is packed on first use
    into the cache and anew whenever a file in it has changed.

    Args:
        cache: folder of packed data; $MECAM_CACHE or ~/.cache/mecam if not given.
        workers, on_error, progress: as in `pack`.
        scanned: called with what was found in a folder, and what was passed over.
    """
    cache = cache_folder() if cache is None else Path(cache)
    if str(name_or_path) == SHAPES:
        return _shapes(cache)
    path, name = _find(name_or_path, root)
    if is_store(path):
        return Store(path)
    found = scan(path)
    if scanned is not None:
        scanned(found)
    name = name or found.name
    out = cache / "stores" / f"{name}-{listing_digest(found)}"
    try:
        if is_store(out):
            store = Store(out)
            if on_error == "skip" or not store.skipped:
                return store
        return pack(found, out, name=name, workers=workers, on_error=on_error, progress=progress)
    except (CannotWriteError, PermissionError) as error:
        raise DataError(
            f"{error}. It is in the cache, {cache}: set ${CACHE} to a folder that can be written"
        ) from error


def cache_folder() -> Path:
    """$MECAM_CACHE or ~/.cache/mecam."""
    return Path(os.environ.get(CACHE) or Path.home() / ".cache" / "mecam").expanduser()


def _shapes(cache: Path) -> DomainSet:
    """The embedded set, drawn anew when the code of this package has changed."""
    digest = hashlib.blake2b(digest_size=16)
    try:
        for source in sorted(Path(__file__).parent.glob("*.py")):
            digest.update(source.read_bytes())
        out = cache / "stores" / f"{SHAPES}-{digest.hexdigest()}"
        return Store(out) if is_store(out) else pack_set(shapes.shapes(), out)
    except (OSError, DataError):  # no place to write, a damaged cache: no reason to stop for a second's work
        return shapes.shapes()


def locate(name_or_path: str | Path) -> Path:
    """Where the data of this name lies, the embedded set aside; nothing is read."""
    return _find(name_or_path, None)[0]


def _find(name_or_path: str | Path, root: Path | None) -> tuple[Path, str | None]:
    """Where the data lies, and its name if it is a known benchmark."""
    path = Path(name_or_path).expanduser()
    if path.is_dir():
        return path, None
    if isinstance(name_or_path, Path) or os.sep in name_or_path:
        raise DataError(f"there is no folder {path}; give a folder of images, a store, or one of {_offered()}")
    try:
        benchmark = known.find(name_or_path)
    except DataError:
        raise _unknown(name_or_path) from None
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


def _unknown(name: str) -> DataError:
    names = {plain(known): known for known in (SHAPES, *KNOWN)}
    near = [names[match] for match in get_close_matches(plain(name), names, n=3, cutoff=0.5)]
    hint = f"did you mean {' or '.join(near)}? Otherwise give" if near else "give"
    return DataError(
        f"there is no data set and no folder {name!r}; {hint} a folder of images, a store, or {_offered()}"
    )


def _offered() -> str:
    return ", ".join((SHAPES, *KNOWN))

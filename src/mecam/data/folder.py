"""Find images: in folders, by default root/<domain>/<class>/<image>, or in a table. All in sorted order."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from mecam.data.domain_from import domains_of
from mecam.data.domains import DataError
from mecam.data.layout import CLASS, DEFAULT, Layout, ask_about, parse
from mecam.data.scan import Sample, Scan, arrange, check_classes, listed, name_of
from mecam.data.table import SUFFIXES, is_table, read_rows

IMAGE_SUFFIXES = frozenset({".jpg", ".jpeg", ".png", ".bmp", ".webp", ".ppm", ".tif", ".tiff", ".gif"})
IMAGE_SUFFIXES |= {".avif", ".heic", ".heif"}  # read by optional packages; unreadable without them, not ignored


def scan(
    source: Path,
    *,
    layout: str | None = None,
    domain_from: str | None = None,
    allow_missing_classes: bool = False,
) -> Scan:
    """Find the images of a folder or a table; hidden files, files that are not images and links back are ignored.

    Images in folders inside a class folder belong to the class. Without a layout, folders that look like splits, or
    like domains inside classes, are an error that asks.

    Args:
        source: a folder, or a CSV or Parquet file with columns path, label and perhaps domain.
        layout: what the folders from the root down are, such as "class/domain"; default: "domain/class", and "class"
            with `domain_from`.
        domain_from: a regular expression on the path from the root whose group is the domain, or exif:TAG.
        allow_missing_classes: let a domain lack a class that another domain has.
    """
    source = Path(source)
    found = (_scan_table if is_table(source) else _scan_folder)(source, layout, domain_from)
    if not allow_missing_classes:
        check_classes(found)
    return found


def _scan_folder(root: Path, given: str | None, domain_from: str | None) -> Scan:
    layout = Layout((CLASS,) if domain_from else DEFAULT) if given is None else parse(given)
    if not os.path.isdir(root):
        what = f"is not a folder, nor a {' or '.join(SUFFIXES)} file" if os.path.lexists(root) else "does not exist"
        raise DataError(f"{root} {what}; expected {layout}")
    if domain_from and layout.domain is not None:
        raise DataError(f"layout={given} has domains, and so does --domain-from {domain_from}; leave one of them out")
    walk = _Walk(root)
    below = walk.below(len(layout.parts))
    folders = {folder: [f"{folder}/{file}" for file in walk.images(root / folder)] for folder in below}
    files = [file for inside in folders.values() for file in inside]
    if given is None:
        ask_about(root, layout, walk.top, files)
    _check(walk, layout, folders)
    if domain_from:
        domains = domains_of(files, root, domain_from)
    elif layout.domain is None:
        domains = [name_of(root)] * len(files)
    else:
        domains = [file.split("/")[layout.domain] for file in files]
    samples = [Sample(file, domain, file.split("/")[layout.label]) for file, domain in zip(files, domains, strict=True)]
    empty = [folder for folder, inside in folders.items() if not inside]
    return arrange(samples, root, root, notes=walk.notes, empty=empty, dead=walk.dead, hidden=walk.hidden)


def _scan_table(file: Path, layout: str | None, domain_from: str | None) -> Scan:
    if layout is not None:
        raise DataError(f"layout={layout} is for folders, and {file} is a table; leave it out")
    rows = read_rows(file)
    if not rows:
        raise DataError(f"there are no images in {file}; it has no line below its columns")
    if rows[0].domain is not None and domain_from is not None:
        raise DataError(f"{file} has a column domain, and --domain-from {domain_from} gives another; leave one out")
    if domain_from is None:
        domains = [name_of(file) if row.domain is None else row.domain for row in rows]
    else:
        domains = domains_of([row.path for row in rows], file.parent, domain_from)
    samples = sorted(Sample(row.path, domain, row.label) for row, domain in zip(rows, domains, strict=True))
    return arrange(samples, file, file.parent)


def _check(walk: _Walk, layout: Layout, folders: dict[str, list[str]]) -> None:
    """Refuse a root without images, and domains without images."""
    root, passed = walk.root, "".join(f"; {note}" for note in walk.notes[:3])
    if not walk.top:
        raise DataError(
            f"{root} has no folders in it; expected {layout}; give the folder that holds a folder for each "
            f"{layout.parts[0]}{passed}"
        )
    if not any(folders.values()):
        found = [name for name in walk.top if any(_is_image(entry) for entry in os.scandir(root / name))]
        if layout.parts == DEFAULT and found:
            raise DataError(
                f"the images of {root} lie in {listed(found, 4)}, and not in folders inside; expected {layout}. Are "
                f"these the classes? Then say where the domains are: --domain-from PATTERN on the path, --domain-from "
                "exif:Model for the camera, or --layout class for a single domain"
            )
        types = ", ".join(sorted(IMAGE_SUFFIXES))
        raise DataError(f"no images below {root}; expected {layout}, with images of type {types}{passed}")
    if layout.domain is None:
        return
    index = layout.domain
    full = {folder.split("/")[index] for folder, inside in folders.items() if inside}
    seen = walk.top if index == 0 else [folder.split("/")[index] for folder in folders]
    if empty := [name for name in dict.fromkeys(seen) if name not in full]:
        raise DataError(
            f"no images in the domain {listed(empty)} of {root}; add them or remove the folder. Expected {layout}"
        )


def _is_image(entry: os.DirEntry[str]) -> bool:
    return os.path.splitext(entry.name)[1].lower() in IMAGE_SUFFIXES and not hidden(entry.name) and entry.is_file()


@dataclass
class _Walk:
    """Visit each real folder below a root once, and note what is ignored."""

    root: Path
    notes: list[str] = field(default_factory=list)
    dead: list[str] = field(default_factory=list)
    hidden: list[str] = field(default_factory=list)
    seen: set[tuple[int, int]] = field(default_factory=set)
    top: list[str] = field(default_factory=list)  # folders in the root

    def below(self, depth: int, inside: str = "") -> Iterator[str]:
        """Yield the folders at this depth below a folder, by their paths from the root."""
        folders, files = self._read(self.root / inside)
        self._note(self.root / inside, "not folders", [file.name for file in files])
        for folder in folders:
            if not self._enter(folder):
                continue
            if not inside:
                self.top.append(folder.name)
            path = f"{inside}/{folder.name}" if inside else folder.name
            yield from [path] if depth == 1 else self.below(depth - 1, path)

    def images(self, folder: Path) -> list[str]:
        """Return paths from the folder in the order of ImageFolder: by folder, then by name."""
        images, skipped, pending = [], [], [""]
        while pending:
            inside = pending.pop()
            folders, files = self._read(folder / inside)
            names = [entry.name for entry in folders if self._enter(entry)]
            pending += [f"{inside}/{name}" if inside else name for name in names]
            for file in files:
                path = f"{inside}/{file.name}" if inside else file.name
                if _is_image(file):
                    images.append((inside, file.name, path))
                else:
                    skipped.append(path)
        self._note(folder, "not images", sorted(skipped))
        return [path for *_, path in sorted(images)]

    def _read(self, folder: Path) -> tuple[list[os.DirEntry[str]], list[os.DirEntry[str]]]:
        """Return the folders in a folder, and its files, sorted by name."""
        try:
            with os.scandir(folder) as iterator:
                entries = sorted(iterator, key=lambda entry: entry.name)
        except OSError as error:
            raise DataError(f"the folder {folder} cannot be read: {error.strerror}; check its permissions") from error
        self.hidden += [self._shown(entry.path) for entry in entries if hidden(entry.name)]
        visible = [entry for entry in entries if not hidden(entry.name)]
        dead = [entry for entry in visible if entry.is_symlink() and not os.path.exists(entry.path)]
        self.dead += [self._shown(entry.path) for entry in dead]
        self._note(folder, "links that lead nowhere", [entry.name for entry in dead])
        alive = [entry for entry in visible if entry not in dead]
        return [entry for entry in alive if entry.is_dir()], [entry for entry in alive if not entry.is_dir()]

    def _enter(self, entry: os.DirEntry[str]) -> bool:
        """Return whether to visit the folder; a link back into the root is visited at its target."""
        if entry.is_symlink():
            root, target = Path(os.path.realpath(self.root)), Path(os.path.realpath(entry.path))
            inside = target.is_relative_to(root) and not any(map(hidden, target.relative_to(root).parts))
            if inside or root.is_relative_to(target):
                self.notes.append(f"{self._shown(entry.path)!r} is a link back into the data and is ignored")
                return False
        status = entry.stat()
        identity = status.st_dev, status.st_ino
        if identity in self.seen:
            self.notes.append(f"{self._shown(entry.path)!r} is a folder that was visited already and is ignored")
            return False
        self.seen.add(identity)
        return True

    def _note(self, folder: Path, what: str, names: list[str]) -> None:
        if names:
            self.notes.append(f"{self._shown(folder)!r}: {what}, ignored: {listed(names, 3)}")

    def _shown(self, path: str | Path) -> str:
        return os.path.relpath(path, self.root)


def hidden(name: str) -> bool:
    return name.startswith(".") or name == "__MACOSX"

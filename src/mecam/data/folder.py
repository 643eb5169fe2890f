"""Find images on disk as root/<domain>/<class>/<image>, in sorted order."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from mecam.data.domains import DataError

IMAGE_SUFFIXES = frozenset({".jpg", ".jpeg", ".png", ".bmp", ".webp", ".ppm", ".tif", ".tiff", ".gif"})
LAYOUT = "expected root/<domain>/<class>/<image>"

MissingClasses = Literal["error", "allow"]


@dataclass(frozen=True)
class Scan:
    """The images below a root; `files[d][i]` is the path of image i of domain d from the root, with forward slashes."""

    root: Path
    domains: tuple[str, ...]
    classes: tuple[str, ...]
    files: tuple[tuple[str, ...], ...]
    file_labels: tuple[tuple[int, ...], ...]
    notes: tuple[str, ...]  # what is ignored, and why
    empty: tuple[str, ...] = ()  # class folders without an image
    dead: tuple[str, ...] = ()  # broken links; in the notes too
    hidden: tuple[str, ...] = ()  # files and folders

    @property
    def name(self) -> str:
        return self.root.resolve().name

    def labels(self, domain: int) -> NDArray[np.int64]:
        return np.array(self.file_labels[domain], dtype=np.int64)

    def paths(self) -> list[str]:
        """Return the paths of all images from the root, domain by domain."""
        return [file for files in self.files for file in files]

    def __len__(self) -> int:
        return sum(map(len, self.files))


def scan(root: Path, *, missing_classes: MissingClasses = "error") -> Scan:
    """Scan a root; hidden files, files that are not images and links back into the root are ignored.

    Images in folders inside a class folder belong to the class. `missing_classes="allow"` lets a domain lack a class
    that another domain has.
    """
    root = Path(root)
    if not os.path.isdir(root):
        raise DataError(f"{root} {'is not a folder' if os.path.lexists(root) else 'does not exist'}; {LAYOUT}")
    walk = _Walk(root)
    folders = {
        domain: {
            label: [f"{domain}/{label}/{file}" for file in walk.images(folder)] for label, folder in walk.folders(path)
        }
        for domain, path in walk.folders(root)
    }
    domains = {
        domain: {label: files for label, files in by_class.items() if files} for domain, by_class in folders.items()
    }
    classes = sorted({label for by_class in domains.values() for label in by_class})
    _check(root, domains, classes, missing_classes, walk.notes)
    label_of = {name: label for label, name in enumerate(classes)}
    return Scan(
        root=root,
        domains=tuple(domains),
        classes=tuple(classes),
        files=tuple(tuple(file for files in by_class.values() for file in files) for by_class in domains.values()),
        file_labels=tuple(
            tuple(label_of[name] for name, files in by_class.items() for _ in files) for by_class in domains.values()
        ),
        notes=tuple(walk.notes),
        empty=tuple(f"{domain}/{label}" for domain, labels in folders.items() for label in labels if not labels[label]),
        dead=tuple(walk.dead),
        hidden=tuple(walk.hidden),
    )


def _check(
    root: Path,
    domains: dict[str, dict[str, list[str]]],
    classes: list[str],
    missing: MissingClasses,
    notes: list[str],
) -> None:
    if not domains:
        raise DataError(f"{root} has no folders in it; {LAYOUT}: give the folder that holds a folder for each domain")
    if not classes:
        passed = "".join(f"; {note}" for note in notes[:3])
        types = ", ".join(sorted(IMAGE_SUFFIXES))
        raise DataError(f"no images below {root}; {LAYOUT}, with images of type {types}{passed}")
    if len(domains) == 1:
        raise DataError(
            f"{root} has a single domain, {next(iter(domains))!r}; at least two are needed, and training without a "
            f"target on one domain is refused as well. Is this the folder of one domain? {LAYOUT}"
        )
    if empty := [domain for domain, by_class in domains.items() if not by_class]:
        raise DataError(f"no images in the domain {listed(empty)} of {root}; add them or remove the folder. {LAYOUT}")
    lacking = [
        f"{domain!r} has no images of {listed(absent)}"
        for domain, by_class in domains.items()
        if (absent := [label for label in classes if label not in by_class])
    ]
    if lacking and missing == "error":
        raise DataError(
            f"the domains of {root} differ in their classes: {'; '.join(lacking)}. Add the images, or remove the "
            f"class everywhere. To train on them as they are: mecam data pack {root} --out STORE "
            '--allow-missing-classes, then --data STORE; in Python, pack(scan(root, missing_classes="allow"), store)'
        )


def listed(names: Sequence[str], most: int = 10) -> str:
    """Return the first names, and the number of the others."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(map(repr, names[:most])) + more


@dataclass
class _Walk:
    """Visit each real folder below a root once, and note what is ignored."""

    root: Path
    notes: list[str] = field(default_factory=list)
    dead: list[str] = field(default_factory=list)
    hidden: list[str] = field(default_factory=list)
    seen: set[tuple[int, int]] = field(default_factory=set)

    def folders(self, parent: Path) -> Iterator[tuple[str, Path]]:
        """Yield name and path of each folder in the parent, sorted by name."""
        entries = self._entries(parent)
        self._note(parent, "not folders", [entry.name for entry in entries if not entry.is_dir()])
        for entry in entries:
            if entry.is_dir() and self._enter(entry):
                yield entry.name, Path(entry.path)

    def images(self, folder: Path) -> list[str]:
        """Return paths from the folder in the order of ImageFolder: by folder, then by name."""
        images, skipped, pending = [], [], [""]
        while pending:
            inside = pending.pop()
            for entry in self._entries(folder / inside):
                path = f"{inside}/{entry.name}" if inside else entry.name
                if entry.is_dir():
                    if self._enter(entry):
                        pending.append(path)
                elif os.path.splitext(entry.name)[1].lower() in IMAGE_SUFFIXES and entry.is_file():
                    images.append((inside, entry.name, path))
                else:
                    skipped.append(path)
        self._note(folder, "not images", sorted(skipped))
        return [path for *_, path in sorted(images)]

    def _entries(self, folder: Path) -> list[os.DirEntry[str]]:
        try:
            with os.scandir(folder) as iterator:
                entries = sorted(iterator, key=lambda entry: entry.name)
        except OSError as error:
            raise DataError(f"the folder {folder} cannot be read: {error.strerror}; check its permissions") from error
        self.hidden += [self._shown(entry.path) for entry in entries if hidden(entry.name)]
        visible = [entry for entry in entries if not hidden(entry.name)]
        dead = {entry.name: entry for entry in visible if entry.is_symlink() and not os.path.exists(entry.path)}
        self.dead += [self._shown(entry.path) for entry in dead.values()]
        self._note(folder, "links that lead nowhere", list(dead))
        return [entry for entry in visible if entry.name not in dead]

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

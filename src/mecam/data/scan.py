"""Scan a folder or a table of images: files by domain and class."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from mecam.data.domains import DataError


@dataclass(frozen=True)
class Scan:
    """The images of a folder or a table; `files[d][i]` is the path of image i of domain d from the root."""

    source: Path  # the folder or table that was given
    root: Path
    domains: tuple[str, ...]
    classes: tuple[str, ...]
    files: tuple[tuple[str, ...], ...]  # with forward slashes
    file_labels: tuple[tuple[int, ...], ...]
    notes: tuple[str, ...] = ()  # what is ignored, and why
    empty: tuple[str, ...] = ()  # class folders without an image
    dead: tuple[str, ...] = ()  # broken links; in the notes too
    hidden: tuple[str, ...] = ()  # files and folders

    @property
    def name(self) -> str:
        return name_of(self.source)

    def labels(self, domain: int) -> NDArray[np.int64]:
        return np.array(self.file_labels[domain], dtype=np.int64)

    def paths(self) -> list[str]:
        """Return the paths of all images from the root, domain by domain."""
        return [file for files in self.files for file in files]

    @property
    def lacking(self) -> dict[str, list[str]]:
        """Return the classes that a domain has no images of, by domain."""
        present = [{*labels} for labels in self.file_labels]
        absent = [[name for label, name in enumerate(self.classes) if label not in own] for own in present]
        return {domain: names for domain, names in zip(self.domains, absent, strict=True) if names}

    @property
    def ignored(self) -> list[str]:
        """Return one line for each file or folder that is not used."""
        return [*self.notes, *(f"{folder!r}: no images" for folder in self.empty)]

    def __len__(self) -> int:
        return sum(map(len, self.files))


class Sample(NamedTuple):
    """An image file by its path from the root, its domain and its label."""

    path: str
    domain: str
    label: str


def arrange(samples: Iterable[Sample], source: Path, root: Path, **seen: Iterable[str]) -> Scan:
    """Return the samples by domain and class, in the order in which they come; `seen` is what else was found."""
    domains: dict[str, dict[str, list[str]]] = {}
    for sample in samples:
        domains.setdefault(sample.domain, {}).setdefault(sample.label, []).append(sample.path)
    classes = sorted({label for by_class in domains.values() for label in by_class})
    names = sorted(domains)
    present = [[(number, domains[name].get(label, [])) for number, label in enumerate(classes)] for name in names]
    return Scan(
        source=source,
        root=root,
        domains=tuple(names),
        classes=tuple(classes),
        files=tuple(tuple(file for _, files in by_class for file in files) for by_class in present),
        file_labels=tuple(tuple(label for label, files in by_class for _ in files) for by_class in present),
        **{name: tuple(entries) for name, entries in seen.items()},
    )


def check_classes(scan: Scan) -> None:
    """Refuse domains that lack a class."""
    if lacking := scan.lacking:
        each = "; ".join(f"{domain!r} has no images of {listed(absent)}" for domain, absent in lacking.items())
        raise DataError(
            f"the domains of {scan.source} differ in their classes: {each}. Add the images, or remove the class "
            "everywhere. To use the data as it is, give --allow-missing-classes"
        )


def name_of(source: Path) -> str:
    """Return the name of a data set: the folder's, or the file's without its suffix."""
    path = source.resolve()
    return path.stem if path.is_file() else path.name


def listed(names: Sequence[str], most: int = 10) -> str:
    """Return the first names, and the number of the others."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(map(repr, names[:most])) + more

"""Find images to predict, and labelled images to evaluate a model on: folders named after classes, or a table."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from mecam.data.domains import DataError
from mecam.data.folder import IMAGE_SUFFIXES, hidden, scan
from mecam.data.scan import listed
from mecam.data.table import read_rows
from mecam.near import hint

LAYOUTS = (
    "expected FOLDER/<class>/<image>, FOLDER/<domain>/<class>/<image>, or a CSV file with columns path,label[,domain]"
)


@dataclass(frozen=True)
class Labelled:
    """An image, the index of its class, and its domain; "" if there are no domains."""

    image: Path
    label: int
    domain: str = ""


def find_images(paths: Iterable[Path]) -> list[Path]:
    """Return files as given and the images below folders, sorted; hidden files are ignored."""
    images: list[Path] = []
    for path in paths:
        own = _below(path) if path.is_dir() else [path]
        if not own:
            raise DataError(f"there are no images below {path}; known types are {', '.join(sorted(IMAGE_SUFFIXES))}")
        images += own
    return images


def _below(folder: Path) -> list[Path]:
    images = (path for path in folder.rglob("*") if path.suffix.lower() in IMAGE_SUFFIXES and not path.is_dir())
    visible = (path for path in images if not any(map(hidden, path.relative_to(folder).parts)))
    return sorted(visible, key=lambda path: (path.parent, path.name))


def find_labelled(source: Path, classes: Sequence[str]) -> tuple[list[Labelled], list[str]]:
    """Return the images of a folder or table by the classes of a model, and one line per thing that is ignored.

    Paths in a table are relative to its folder.
    """
    if source.is_dir():
        return _from_folder(source, classes)
    if not source.is_file():
        raise DataError(f"{source} does not exist; {LAYOUTS}")
    rows = read_rows(source)
    if not rows:
        raise DataError(f"there are no images in {source}; {LAYOUTS}")
    first = next((row.place for row in rows if row.label not in classes), "")
    _check_known([row.label for row in rows], classes, f"{source} ({first})")
    return [Labelled(source.parent / row.path, classes.index(row.label), row.domain or "") for row in rows], []


def _from_folder(root: Path, classes: Sequence[str]) -> tuple[list[Labelled], list[str]]:
    has_domains = _has_domains(root, classes)
    images = scan(root, layout="domain/class" if has_domains else "class", allow_missing_classes=True)
    _check_known(images.classes, classes, str(root))
    places = [classes.index(name) for name in images.classes]
    labelled = [
        Labelled(root / file, places[label], domain if has_domains else "")
        for domain, files, labels in zip(images.domains, images.files, images.file_labels, strict=True)
        for file, label in zip(files, labels, strict=True)
    ]
    return labelled, images.ignored


def _has_domains(root: Path, classes: Sequence[str]) -> bool:
    """Return whether folders named after classes are inside those of the root, and not these themselves."""
    top = _folders(root)
    second = {name for folder in top for name in _folders(root / folder)}
    known_top, known_second = (sum(name in classes for name in names) for names in (top, second))
    if known_top == len(top) or not second:
        return False
    return known_second == len(second) or not known_top


def _folders(parent: Path) -> list[str]:
    return [entry.name for entry in os.scandir(parent) if entry.is_dir() and not hidden(entry.name)]


def _check_known(labels: Sequence[str], classes: Sequence[str], where: str) -> None:
    """Refuse labels that are no class of the model; the error lists both."""
    labels = list(dict.fromkeys(labels))
    unknown = [label for label in labels if label not in classes]
    if unknown:
        near = {label: hint(label, classes, otherwise="") for label in unknown}
        named = [
            f"{label!r} ({near[label]})" if "did you mean" in near[label] else repr(label) for label in unknown[:5]
        ]
        more = f" and {len(unknown) - 5} more" if len(unknown) > 5 else ""
        raise DataError(
            f"{where} has classes that the model does not know: {', '.join(named)}{more}. The model's classes: "
            f"{listed(classes)}. Those here: {listed(labels)}"
        )

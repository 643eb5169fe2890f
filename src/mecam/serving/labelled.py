"""Find labelled images to evaluate a model on: folders named after classes, or a table."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from mecam.data.domains import DataError
from mecam.data.folder import hidden
from mecam.data.scan import listed
from mecam.data.table import read_rows
from mecam.near import hint
from mecam.serving.images import walk

LAYOUTS = (
    "expected FOLDER/<class>/<image>, FOLDER/<domain>/<class>/<image>, or a CSV file with columns path,label[,domain]"
)
Tree = Mapping[str, Path]


@dataclass(frozen=True)
class Labelled:
    """An image, the index of its class, and its domain; "" if there are no domains."""

    image: Path
    label: int
    domain: str = ""


def find_labelled(source: Path, classes: Sequence[str]) -> tuple[list[Labelled], list[str]]:
    """Return the images of a folder or table by the classes of a model, and one line per thing that is ignored."""
    if source.is_dir():
        labelled, ignored = _from_folder(source, classes)
    elif source.is_file():
        labelled, ignored = _from_table(source, classes), []
    else:
        raise DataError(f"there is no {source}; {LAYOUTS}")
    if not labelled:
        raise DataError(f"there are no images in {source}{''.join(f'; {line}' for line in ignored[:3])}; {LAYOUTS}")
    return labelled, ignored


def _from_folder(root: Path, classes: Sequence[str]) -> tuple[list[Labelled], list[str]]:
    top = _folders(root)
    inside = {name: _folders(path) for name, path in top.items()}
    second = list(dict.fromkeys(chain.from_iterable(inside.values())))
    if _has_domains(top, second, classes):
        folders = [(domain, label, path) for domain, tree in inside.items() for label, path in tree.items()]
        ignored = [*_loose(root, ""), *(line for name, path in top.items() for line in _loose(path, name))]
    else:
        folders = [("", label, path) for label, path in top.items()]
        ignored = _loose(root, "")
    _check_known([label for _, label, _ in folders], classes, str(root))
    labelled = []
    for domain, label, path in folders:
        images, others = walk(path)
        labelled += [Labelled(image, classes.index(label), domain) for image in images]
        name = path.relative_to(root)
        if others:
            ignored.append(f"{name}: not images, ignored: {_names(others, path)}")
        if not images:
            ignored.append(f"{name}: no images")
    return labelled, ignored


def _has_domains(top: Tree, second: Sequence[str], classes: Sequence[str]) -> bool:
    """Return whether folders named after classes are inside those of the root, and not these themselves."""
    known_top, known_second = (sum(name in classes for name in names) for names in (top, second))
    if known_top == len(top) or not second:
        return False
    return known_second == len(second) or not known_top


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


def _from_table(file: Path, classes: Sequence[str]) -> list[Labelled]:
    """Return the rows of a table; paths are relative to the folder of the file."""
    rows = read_rows(file)
    first = next((row.place for row in rows if row.label not in classes), "")
    _check_known([row.label for row in rows], classes, f"{file} ({first})")
    return [Labelled(file.parent / row.path, classes.index(row.label), row.domain or "") for row in rows]


def _folders(parent: Path) -> dict[str, Path]:
    """Return the visible folders in this one; links to folders count."""
    return {name: parent / name for name in sorted(os.listdir(parent)) if not hidden(name) and (parent / name).is_dir()}


def _loose(folder: Path, name: str) -> list[str]:
    """Return a line on the files beside the class folders, if there are any."""
    files = [path for path in sorted(folder.iterdir()) if not hidden(path.name) and not path.is_dir()]
    return (
        [f"{name or folder.name}: files outside of a class folder, ignored: {_names(files, folder)}"] if files else []
    )


def _names(files: Sequence[Path], folder: Path) -> str:
    return listed([str(file.relative_to(folder)) for file in files], 3)

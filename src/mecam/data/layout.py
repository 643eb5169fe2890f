"""Layouts of folders: domains and classes, and layouts that are easily misread."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from mecam.data.domains import DataError
from mecam.data.scan import listed

DOMAIN, CLASS, ANY = "domain", "class", "any"
DEFAULT = (DOMAIN, CLASS)
SPLITS = frozenset(
    ("train", "training", "val", "valid", "validation", "test", "testing", "eval", "evaluation", "dev", "holdout")
)
# words in names of domains, beside years; classes are rarely called so
DOMAIN_WORDS = frozenset(
    (
        *("amazon", "art", "caltech", "cartoon", "clip", "clipart", "dslr", "infograph", "labelme", "painting"),
        *("photo", "quickdraw", "real", "sketch", "synthetic", "voc", "webcam"),
        *("batch", "cam", "camera", "center", "centre", "clinic", "domain", "factory", "hospital", "lab", "laboratory"),
        *("loc", "location", "microscope", "museum", "scanner", "session", "site", "source"),
    )
)


class Layout(NamedTuple):
    """The meaning of the folders on the way from the root to an image."""

    parts: tuple[str, ...]

    @property
    def domain(self) -> int | None:
        return self.parts.index(DOMAIN) if DOMAIN in self.parts else None

    @property
    def label(self) -> int:
        return self.parts.index(CLASS)

    def __str__(self) -> str:
        return "/".join(("root", *(f"<{part}>" for part in self.parts), "<image>"))


def parse(text: str) -> Layout:
    """Return the layout that `--layout` describes: domain/class, class/domain, class, any/domain/class, ..."""
    parts = tuple(text.strip("/").split("/"))
    if not set(parts) <= {DOMAIN, CLASS, ANY} or parts.count(CLASS) != 1 or parts.count(DOMAIN) > 1:
        raise DataError(
            f"layout={text!r} is not allowed; it names the folders from the root down: class once, domain at most once "
            "and any for others, such as domain/class, class/domain, class or any/domain/class"
        )
    return Layout(parts)


def ask_about(root: Path, layout: Layout, folders: Sequence[str], files: Iterable[str]) -> None:
    """Raise an error with a question if the default layout is probably not that of these images.

    Args:
        folders: the folders in the root.
        files: the paths of the images from the root.
    """
    if layout.parts != DEFAULT:  # the domains are from elsewhere
        if _are_splits(folders):
            raise DataError(
                f"{_found(root, folders)}, where {layout} is expected. To use the images of all of them, give --layout "
                f"any/class. If they are the classes, give --layout class"
            )
        return
    paths = [file.split("/") for file in files]
    levels = [folders, *(sorted({path[level] for path in paths if len(path) > level + 1}) for level in (1, 2))]
    deep = bool(paths) and all(len(path) > 3 for path in paths)
    _ask_about_splits(root, levels, deep)
    if len(folders) == 1 and deep:
        raise DataError(
            f"{root} has a single folder, {folders[0]!r}, and its images lie three folders deep. Is {folders[0]!r} the "
            f"folder of the domains? Then give {root / folders[0]}. If it is the only domain, and "
            "the folders in it are the classes, give --layout domain/class"
        )
    inner = levels[1]
    if len(inner) > 1 and all(map(_like_a_domain, inner)) and not any(map(_like_a_domain, folders)):
        raise DataError(
            f"the folders below those of {root} look like domains: {listed(inner, 4)}; and those of {root} like "
            f"classes: {listed(folders, 4)}. Did you mean root/<class>/<domain>/<image>? Then give --layout "
            "class/domain. If it is right as it is, give --layout domain/class"
        )


def _ask_about_splits(root: Path, levels: Sequence[Sequence[str]], deep: bool) -> None:
    level = next((number for number, names in enumerate(levels) if _are_splits(names)), None)
    if level is None:
        return
    found = _found(root, levels[level])
    if level == 2:
        raise DataError(
            f"{found}, inside the class folders. Training would use the images of all of them. To do so, give "
            "--layout domain/class; otherwise move the other images elsewhere"
        )
    if level == 1 and deep:
        raise DataError(
            f"{found}, inside {listed(levels[0], 4)}. To use the images of all of them, give --layout "
            "domain/any/class. If these are the classes, give --layout domain/class"
        )
    if level == 1:
        raise DataError(
            f"{found}, inside {listed(levels[0], 4)}. To use the images of all of them as one domain, give --layout "
            "class, or with domains from the file names --domain-from. If these are the classes, give --layout "
            "domain/class"
        )
    first = next((name for name in levels[0] if name.lower().startswith("train")), levels[0][0])
    inside, one = ("domain/class", "") if deep else ("class", ", as one domain")
    raise DataError(
        f"{found}. Which of its images are to be trained on? Those of one split{one}: give {root / first} with "
        f"--layout {inside}, and mecam evaluate the model on another. Those of all{one}: --layout any/{inside}. If "
        "the splits are the domains: --layout domain/class"
    )


def _found(root: Path, names: Sequence[str]) -> str:
    splits = [name for name in names if name.lower() in SPLITS]
    return f"{root} has folders that look like splits of one data set: {listed(splits, 4)}"


def _are_splits(names: Sequence[str]) -> bool:
    """Return whether these are the folders of splits: all of them, or train beside another."""
    found = {name.lower() for name in names} & SPLITS
    trains = any(name.startswith("train") for name in found)
    return bool(found) and (len(found) == len(names) or (trains and len(found) > 1))


def _like_a_domain(name: str) -> bool:
    words = re.findall(r"[a-z]+|\d+", name.lower())
    return any({word, word.rstrip("s")} & DOMAIN_WORDS or re.fullmatch(r"(19|20)\d\d", word) for word in words)

"""Find the image files to predict."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from mecam.data.domains import DataError
from mecam.data.folder import IMAGE_SUFFIXES


def find_images(paths: Iterable[Path]) -> list[Path]:
    """Files as given, and the images below folders, sorted; hidden files are ignored."""
    found: list[Path] = []
    for path in paths:
        if path.is_dir():
            below = _images(path)
            if not below:
                raise DataError(
                    f"there are no images below {path}; known types are {', '.join(sorted(IMAGE_SUFFIXES))}"
                )
            found += below
        else:
            found.append(path)
    return found


def _images(folder: Path) -> list[Path]:
    found = []
    for inside, folders, files in os.walk(folder):  # links to folders are not followed: they may lead back
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        images = (name for name in sorted(files) if Path(name).suffix.lower() in IMAGE_SUFFIXES)
        found += [Path(inside) / name for name in images if not name.startswith(".")]
    return found

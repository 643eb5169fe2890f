"""Find the image files to predict."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from mecam.data.domains import DataError
from mecam.data.folder import IMAGE_SUFFIXES


def find_images(paths: Iterable[Path]) -> list[Path]:
    """Return files as given and the images below folders, sorted; hidden files are ignored."""
    images: list[Path] = []
    for path in paths:
        own = _images(path) if path.is_dir() else [path]
        if not own:
            raise DataError(f"there are no images below {path}; known types are {', '.join(sorted(IMAGE_SUFFIXES))}")
        images += own
    return images


def _images(folder: Path) -> list[Path]:
    images = []
    for inside, folders, files in os.walk(folder):  # links to folders are not followed: they may lead back
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        names = (name for name in sorted(files) if Path(name).suffix.lower() in IMAGE_SUFFIXES)
        images += [Path(inside) / name for name in names if not name.startswith(".")]
    return images

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
        own = walk(path)[0] if path.is_dir() else [path]
        if not own:
            raise DataError(f"there are no images below {path}; known types are {', '.join(sorted(IMAGE_SUFFIXES))}")
        images += own
    return images


def walk(folder: Path) -> tuple[list[Path], list[Path]]:
    """Return the images below a folder, and what is ignored: other files, and links to folders, which may lead back."""
    images: list[Path] = []
    ignored: list[Path] = []
    for inside, folders, files in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        ignored += [path for name in folders if (path := Path(inside) / name).is_symlink()]
        for path in (Path(inside) / name for name in sorted(files) if not name.startswith(".")):
            (images if path.suffix.lower() in IMAGE_SUFFIXES else ignored).append(path)
    return images, ignored

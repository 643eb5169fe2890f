"""Take the domain of each image from its path, by a regular expression, or from its EXIF data."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from PIL import ExifTags

from mecam.data.decode import read_header
from mecam.data.domains import DataError
from mecam.near import hint

EXIF = "exif:"
TAGS = {tag.name: int(tag) for tag in ExifTags.Base}
SHOWN = 3


def domains_of(files: Sequence[str], root: Path, source: str) -> list[str]:
    """Return the domain of each file.

    Args:
        files: paths from the root.
        source: a regular expression with one group, which is searched for in each path, or exif:TAG, such as
            exif:Model.
    """
    find = _by_exif(root, source) if source.startswith(EXIF) else _by_pattern(source)
    with ThreadPoolExecutor() as executor:
        found = list(executor.map(find, files))
    without = [file for file, domain in zip(files, found, strict=True) if not domain]
    if without:
        what = "there is no such EXIF entry in" if source.startswith(EXIF) else "it does not match"
        shown = ", ".join(map(repr, without[:SHOWN]))
        raise DataError(
            f"--domain-from {source} gives no domain for {len(without):,} of {len(files):,} images: {what} {shown}. "
            "Change it so that it fits all of them, or give a CSV file with columns path,label,domain"
        )
    return [str(domain) for domain in found]


def _by_pattern(text: str) -> Callable[[str], str | None]:
    try:
        pattern = re.compile(text)
    except re.error as error:
        raise DataError(f"--domain-from {text!r} is not a regular expression: {error}") from error
    if pattern.groups != 1:
        raise DataError(
            f"--domain-from {text!r} has {pattern.groups} groups; it needs one, in parentheses, which is the domain, "
            r"such as 'hospital(\d+)', or (?:...) for others"
        )

    def find(path: str) -> str | None:
        match = pattern.search(path)
        return match and match[1]

    return find


def _by_exif(root: Path, source: str) -> Callable[[str], str | None]:
    name = source.removeprefix(EXIF)
    if name not in TAGS:
        raise DataError(f"--domain-from {source}: there is no EXIF entry {name!r}; {hint(name, ('Model', 'Make'))}")

    def find(path: str) -> str | None:
        try:
            with (root / path).open("rb") as file, read_header(file) as image:
                entries = image.getexif()
                value = entries.get(TAGS[name], entries.get_ifd(ExifTags.IFD.Exif).get(TAGS[name]))
        except Exception:  # decoders raise anything on damaged files; packing reports them
            return None
        return None if value is None else str(value).strip(" \0")

    return find

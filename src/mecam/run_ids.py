"""Run ids: a readable name and a digest of the entries in which a recipe departs from the baseline.

Names and values that have changed since keep their old spelling in the digest, so that ids stay.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from unicodedata import normalize

STORED = {"capture": "record"}  # entries by their names in older files and in the digests
TODAY = {old: new for new, old in STORED.items()}
# values of entries that were switches, in older files and in the digests
SWITCHES: dict[str, dict[bool, str]] = {
    "augment": {True: "protocol", False: "none"},
    "compile": {True: "always", False: "auto"},  # false was the default
}
LETTERS = r"A-Za-z0-9_\x80-\U0010ffff"  # kept in names; of a character class
FILE_NAME_BYTES = 200  # a file name has at most 255, and a run has files named after it


def run_id(values: Mapping[str, Any], baseline: Mapping[str, Any]) -> str:
    """Return the id of the run of a recipe.

    An entry that a later version adds, with the value of before in the baseline, does not rename older runs.
    """
    departures = {STORED.get(k, k): _digested(k, v) for k, v in values.items() if v != baseline[k]}
    digest = hashlib.sha256(json.dumps(departures, sort_keys=True).encode()).hexdigest()[:10]
    choices = (values["method"], values["optimizer"], values["averaging"])
    name = "-".join([beginning(values), *map(_words, choices), f"seed{values['seed']}", digest])
    too_long = not name.isascii() and len(name.encode()) > FILE_NAME_BYTES
    return re.sub(r"[^A-Za-z0-9_-]+", "-", name) if too_long else name


def beginning(values: Mapping[str, Any]) -> str:
    """Return how the ids of runs with this data and target begin."""
    data = re.sub(rf"[^{LETTERS}]+", "-", _printable(Path(values["data"]).name))
    return f"{data}-{_words(values['target'] or 'all')}"


def renamed(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the entries of an older recipe under today's names, and by today's words."""
    named = {TODAY.get(name, name): value for name, value in values.items()}
    return {
        name: SWITCHES[name][value] if isinstance(value, bool) and name in SWITCHES else value
        for name, value in named.items()
    }


def _digested(name: str, value: Any) -> Any:
    """Return the value of an entry as the digests have it."""
    return next((old for old, new in SWITCHES.get(name, {}).items() if new == value), value)


def _words(name: str) -> str:
    return re.sub(rf"[^{LETTERS}-]+", "-", _printable(name))


def _printable(name: str) -> str:
    """Return a name with a space in place of what cannot be printed: undecodable bytes, controls."""
    return "".join(letter if letter.isprintable() else " " for letter in normalize("NFC", name))

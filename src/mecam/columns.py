"""Tables as aligned plain text, and text that is safe to print."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

# controls but tab and line feed, surrogates (bytes of a name that are not UTF-8), and what reverses writing
HIDDEN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")

FORMULA = ("=", "+", "-", "@", "\t", "\r")


def visible(text: str) -> str:
    """Escape the characters that a terminal would obey instead of showing them."""
    return HIDDEN.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return a line per row: the first column flush left, the others flush right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    template = "  ".join(f"{{:{'>' if place else '<'}{width}}}" for place, width in enumerate(widths))
    return [template.format(*row).rstrip() for row in rows]


def as_text(value: Any) -> Any:
    """Return a value for a cell of a CSV file. A spreadsheet would run a name that starts like a formula."""
    if not isinstance(value, str):
        return value
    return visible(f"'{value}" if value.startswith(FORMULA) else value)

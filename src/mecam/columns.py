"""Tables as aligned plain text."""

from __future__ import annotations

from collections.abc import Sequence


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return a line per row: the first column flush left, the others flush right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    template = "  ".join(f"{{:{'>' if place else '<'}{width}}}" for place, width in enumerate(widths))
    return [template.format(*row).rstrip() for row in rows]

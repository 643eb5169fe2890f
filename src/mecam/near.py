"""Compare names, and say what to do about one that is not known."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


def hint(name: str, known: Iterable[str], *, otherwise: str = "known are") -> str:
    """ "did you mean sam or asam?", or all that is known where nothing is near."""
    names = {each.casefold(): each for each in known}
    near = [names[match] for match in get_close_matches(name.casefold(), names, n=3, cutoff=0.4)]
    return f"did you mean {' or '.join(near)}?" if near else f"{otherwise} {', '.join(names.values())}"


def plain(name: str) -> str:
    """Reduce a name to its lower-case letters and digits: "AND-mask" and "andmask" are the same."""
    return "".join(letter for letter in name.casefold() if letter.isalnum())

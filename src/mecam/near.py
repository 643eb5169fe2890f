"""Compare names, and suggest known names for an unknown one."""

from __future__ import annotations

from collections.abc import Iterable


def hint(name: str, known: Iterable[str], *, otherwise: str = "known are") -> str:
    """Return "did you mean sam or asam?", or all known names if none is near.

    A name that differs in case and punctuation alone is the only one suggested.
    """
    from difflib import get_close_matches

    names = {each.casefold(): each for each in known}
    same = [each for each in names.values() if plain(each) == plain(name) != ""]
    near = same[:1] or [names[match] for match in get_close_matches(name.casefold(), names, n=3, cutoff=0.5)]
    return f"did you mean {' or '.join(near)}?" if near else f"{otherwise} {', '.join(names.values())}"


def plain(name: str) -> str:
    """Reduce a name to its lower-case letters and digits: "AND-mask" and "andmask" are the same."""
    return "".join(letter for letter in name.casefold() if letter.isalnum())

"""Write a recipe as a TOML file and as a command."""

from __future__ import annotations

import json
import math
import re
import shlex
from collections.abc import Mapping
from typing import Any

from mecam.recipe import Recipe, departures, option

ALWAYS = ("data", "target", "method", "optimizer", "averaging", "seed")
TOML_WORDS = ("true", "false", "inf", "nan")


def toml(recipe: Recipe) -> str:
    """Return the recipe as TOML; entries that are None are omitted."""
    values = {name: value for name, value in recipe.to_dict().items() if value is not None}
    tables = {name: table for name, table in values.items() if isinstance(table, dict)}
    lines = [f"{name} = {_value(value)}" for name, value in values.items() if name not in tables]
    for name, table in tables.items():
        if table:
            lines += ["", f"[{name}]", *(f"{_key(entry)} = {_value(value)}" for entry, value in table.items())]
    return "\n".join(lines)


def command(recipe: Recipe) -> str:
    """Return `mecam train ...` with the parts of the recipe and all that is not the default."""
    needed = departures(recipe)
    values = {name: value for name, value in recipe.to_dict().items() if name in (*ALWAYS, *needed)}
    return shlex.join(["mecam", "train", *options(values)])


def options(entries: Mapping[str, Any]) -> list[str]:
    """Return the command-line options of these entries; None is left out."""
    words: list[str] = []
    for name, value in entries.items():
        if isinstance(value, dict):
            words += [part for entry in value for part in ("--set", f"{name}.{entry}={_word(value[entry])}")]
        elif isinstance(value, bool):
            words.append(option(name if value else f"no-{name}"))
        elif value is not None:
            words += [option(name), str(value)]
    return words


def _word(value: Any) -> str:
    """Return a value for `--set`; a plain word needs no quotes."""
    plain = isinstance(value, str) and re.fullmatch(r"[A-Za-z_]\w*", value, re.ASCII) and value not in TOML_WORDS
    return str(value) if plain else _value(value)


def _value(value: Any) -> str:
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(_value, value))}]"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{_key(name)} = {_value(entry)}' for name, entry in value.items())}}}"
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)  # nan, inf and -inf are TOML, too
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def _key(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else _value(name)

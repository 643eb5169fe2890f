"""A recipe as the TOML file and as the command that give the same run again."""

from __future__ import annotations

import json
import math
import re
import shlex
from typing import Any

from mecam.recipe import Recipe, make

ALWAYS = ("data", "target", "method", "optimizer", "averaging", "seed")
OPTIONS = (*ALWAYS, "backbone", "weights", "steps")
FLAGS = ("pretrained", "compile")
TOML_WORDS = ("true", "false", "inf", "nan")


def toml(recipe: Recipe) -> str:
    """Every entry that has a value; what TOML cannot say, None, is left out and is the default."""
    values = {name: value for name, value in recipe.to_dict().items() if value is not None}
    tables = {name: table for name, table in values.items() if isinstance(table, dict)}
    lines = [f"{name} = {_value(value)}" for name, value in values.items() if name not in tables]
    for name, table in tables.items():
        if table:
            lines += ["", f"[{name}]", *(f"{_key(entry)} = {_value(value)}" for entry, value in table.items())]
    return "\n".join(lines)


def command(recipe: Recipe) -> str:
    """`mecam train ...`: what was chosen, and all else that is not the default."""
    values = recipe.to_dict()
    chosen = {name: values[name] for name in (*ALWAYS, "base") if values[name] is not None}
    usual = make(chosen).to_dict()
    words = ["mecam", "train"]
    for name in OPTIONS:
        if values[name] is not None and (name in ALWAYS or values[name] != usual[name]):
            words += [f"--{name}", str(values[name])]
    for name in FLAGS:
        if values[name] is not None and values[name] != usual[name]:
            words.append(f"--{name}" if values[name] else f"--no-{name}")
    for name, value in values.items():
        if isinstance(value, dict):
            words += [part for entry in value for part in ("--set", f"{name}.{entry}={_word(value[entry])}")]
        elif name == "base" and value != Recipe.base:
            words += ["--set", f"base={_word(value)}"]
        elif name not in (*OPTIONS, *FLAGS) and value != usual[name]:
            words += ["--set", f"{name}={_word(value)}"]
    return shlex.join(words)


def _word(value: Any) -> str:
    """As `--set` takes it: a plain word needs no quotes."""
    plain = isinstance(value, str) and re.fullmatch(r"[A-Za-z_]\w*", value, re.ASCII) and value not in TOML_WORDS
    return str(value) if plain else _value(value)


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)  # nan, inf and -inf are TOML's words too
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(_value, value))}]"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{_key(name)} = {_value(entry)}' for name, entry in value.items())}}}"
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f") if isinstance(value, str) else repr(value)


def _key(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else _value(name)

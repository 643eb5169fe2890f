"""Every averaging by name, with the hyperparameters it brings."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, cast

from mecam.averaging.base import Averaging
from mecam.averaging.ema import EMA
from mecam.averaging.none import NoAveraging
from mecam.averaging.swad import SWAD
from mecam.near import hint

AVERAGINGS: Mapping[str, type[Averaging]] = {averaging.name: averaging for averaging in (NoAveraging, EMA, SWAD)}


def find(name: str) -> type[Averaging]:
    """The averaging of this name; an unknown name is an error with near matches."""
    if name in AVERAGINGS:
        return AVERAGINGS[name]
    raise ValueError(f"there is no averaging {name!r}; {hint(name, AVERAGINGS)}")


def defaults(name: str) -> dict[str, Any]:
    """What can be set, with its default: the hyperparameters, and options beyond them."""
    return {setting: found.default for setting, found in inspect.signature(find(name)).parameters.items()}


def create(name: str, **settings: Any) -> Averaging:
    """A fresh averaging of this name: create("swad", tolerance=0.2)."""
    known = defaults(name)
    for setting in settings:
        if setting not in known:
            allowed = f"it has {', '.join(known)}" if known else "it has none"
            raise ValueError(f"{name} has no setting {setting!r}; {allowed}")
    return cast(Callable[..., Averaging], find(name))(**settings)


__all__ = ["AVERAGINGS", "create", "defaults", "find"]

"""Every virtual domain by name."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from mecam.near import hint
from mecam.virtual._domain import VirtualDomain
from mecam.virtual.dsu import DSU
from mecam.virtual.efdmix import EFDMix
from mecam.virtual.fourier import Fourier
from mecam.virtual.mixstyle import MixStyle

DOMAINS: Mapping[str, type[VirtualDomain]] = {kind.__name__.lower(): kind for kind in (MixStyle, EFDMix, DSU, Fourier)}


def find(name: str) -> type[VirtualDomain]:
    """The kind of this name; an unknown name is an error with near matches."""
    if name in DOMAINS:
        return DOMAINS[name]
    raise ValueError(f"there is no virtual domain {name!r}; {hint(name, DOMAINS)}")


def known_settings(name: str) -> list[str]:
    """What `create` takes for this virtual domain."""
    return list(inspect.signature(find(name)).parameters)


def create(name: str, **settings: Any) -> VirtualDomain:
    """The virtual domain of this name; a setting it does not have is an error with near matches."""
    known = known_settings(name)
    for setting in settings:
        if setting not in known:
            raise ValueError(f"{name} has no setting {setting!r}; {hint(setting, known, otherwise='it has')}")
    return find(name)(**settings)

"""List what a recipe can choose from."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import fields
from functools import partial
from typing import Any

from mecam import profiles, recipe
from mecam.benchmark.settings import registry
from mecam.columns import aligned
from mecam.near import hint

# in the list of profiles: the parts with values of their own, and which values
SHOWN: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "": ({}, ("lr", "weight_decay", "dropout", "steps", "evaluate_every", "batch")),
    "mecam ": ({"optimizer": "mecam"}, ("lr", "rho", "alpha", "beta")),
    "sagm ": ({"optimizer": "sagm"}, ("rho", "alpha")),
    "sam ": ({"optimizer": "sam"}, ("rho",)),
    "sgd ": ({"optimizer": "sgd"}, ("lr", "momentum")),
    "swad ": ({"averaging": "swad"}, ("evaluate_every", "tolerance")),
    "miro ": ({"method": "miro"}, ("lr", "weight_decay", "dropout", "ld")),
    "mdsdi ": ({"method": "mdsdi"}, ("lr", "weight_decay", "dropout")),
    "arm ": ({"method": "arm"}, ("batch",)),
}


def lines(kind: str | None = None, *, verbose: bool = False) -> list[str]:
    """List one kind, or everything."""
    from mecam.analysis.measures import MEASURES

    parts = ("methods", "method"), ("optimizers", "optimizer"), ("averagings", "averaging"), ("virtual", "virtual")
    listings: dict[str, Callable[[], Iterator[str]]] = {
        **{plural: partial(_registered, part, verbose) for plural, part in parts},
        "measures": lambda: (f"  {name}: {MEASURES.summary(name)}" for name in MEASURES),
        "backbones": partial(_backbones, verbose),
        "data": partial(_data, verbose),
        "profiles": _profiles,
        "recipe": _recipe,
    }
    if kind is not None and kind not in listings:
        raise ValueError(f"there is no list of {kind!r}; {hint(kind, listings, otherwise='there are lists of')}")
    shown = listings if kind is None else {kind: listings[kind]}
    return [line for name, listing in shown.items() for line in (f"{name}:", *listing())]


def _registered(part: str, verbose: bool) -> Iterator[str]:
    """List a part of recipes, with its hyperparameters if `verbose`."""
    among = registry(part)
    for name, item in among.items():
        passes = f" Passes: {item.passes}." if part == "optimizer" else ""
        yield f"  {name}: {among.summary(name)}{passes}"
        if verbose:
            yield from map("      {}".format, _details(part, name))


def _details(part: str, name: str) -> Iterator[str]:
    among = registry(part)
    declared, defaults = among.hyperparameters(name), among.defaults(name)
    if part == "backbone":
        yield among[name].details
    if part == "optimizer":  # a run's learning rate and weight decay are entries of the recipe
        shapes, other = (recipe.Recipe(data=data, optimizer=name) for data in (recipe.Recipe.data, "other"))
        yield f"lr = {shapes.lr:g} ({other.lr:g} for other data): learning rate"
        yield f"weight_decay = {shapes.weight_decay:g}: weight decay"
        declared = {key: value for key, value in declared.items() if key not in ("lr", "weight_decay")}
    for setting, hyperparameter in declared.items():
        search = f"; search {hyperparameter.search}" if hyperparameter.search else ""
        default = "not given" if defaults[setting] is None else defaults[setting]
        yield f"{setting} = {default}: {hyperparameter.meaning}; {hyperparameter.allowed}{search}"


def _backbones(verbose: bool) -> Iterator[str]:
    from mecam.models.registry import TIMM
    from mecam.models.timm_models import HUB

    yield from _registered("backbone", verbose)
    yield f"  {TIMM}<name>: any model of timm, such as {TIMM}resnet50.tv_in1k"
    yield f"  {HUB}<organization>/<name>: a model of timm on the Hugging Face Hub"
    if verbose:
        yield "      their own image size; weights: downloaded, unless --no-pretrained; pip install 'mecam[timm]'"


def _data(verbose: bool) -> Iterator[str]:
    from mecam.data.known import KNOWN

    yield "  shapes: art, cartoon, photo, sketch; 7 classes; embedded, made on this machine"
    for name, known in KNOWN.items():
        yield f"  {name}: {', '.join(known.domains)}; {known.class_count} classes; {known.images:,} images"
        if verbose:
            yield f"      {known.source}"
    yield "  <folder>: your own, as root/<domain>/<class>/<image>"


def _profiles() -> Iterator[str]:
    """List the values of the profiles, one column per data set; DomainBed's differ on DomainNet alone."""
    for name, meaning in profiles.PROFILES.items():
        yield f"  {name}: {meaning}"
    size = profiles.RESNET50["image_size"]
    yield f"  both: backbone {profiles.V1} with its weights, frozen batch norm, images of {size} pixels"
    sets = list(profiles.hyperparameters())
    columns = {f"paper: {name}" if name == sets[0] else name: _profile("paper", name) for name in sets}
    columns |= {"domainbed": _profile("domainbed", sets[0]), "on DomainNet": _profile("domainbed", "DomainNet")}
    lines = [("", *columns)]
    lines += [(entry, *(column[entry] for column in columns.values())) for entry in next(iter(columns.values()))]
    yield from (f"  {line}" for line in aligned(lines))


def _profile(profile: str, data: str) -> dict[str, str]:
    """Return what a profile sets on a data set: in general, and for parts with values of their own."""
    values = {}
    for name, (parts, entries) in SHOWN.items():
        made = recipe.Recipe(data=data, profile=profile, **parts)
        settings: dict[str, Any] = {}
        for part in ("optimizer", "method", "averaging"):
            settings |= registry(part).defaults(getattr(made, part))
        settings |= made.optimizer_settings | made.method_settings | made.averaging_settings
        for entry in entries:
            values[f"{name}{entry}"] = f"{getattr(made, entry) if hasattr(made, entry) else settings[entry]:g}"
    return values


def _recipe() -> Iterator[str]:
    """List the entries with their defaults on `shapes`, and on other data where these differ."""
    shapes, other = recipe.Recipe(), recipe.Recipe(data="other")
    yield f"  profile = not given ({' or '.join(profiles.PROFILES)}: see mecam list profiles)"
    for field in fields(recipe.Recipe):
        value, elsewhere = getattr(shapes, field.name), getattr(other, field.name)
        note = f" ({_toml(elsewhere)} for other data)" if value != elsewhere and field.name != "data" else ""
        yield f"  {field.name} = {_toml(value)}{note}: {field.metadata['help']}"


def _toml(value: object) -> str:
    """Return a value as a recipe writes it."""
    return "not given" if value is None else json.dumps(value)

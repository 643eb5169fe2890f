"""What there is to choose from, as lines of text."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from mecam import recipe
from mecam.near import hint
from mecam.optim.hyperparameters import Hyperparameter


def lines(kind: str | None = None, *, verbose: bool = False) -> list[str]:
    """The listing of one kind, or of all."""
    listings: dict[str, Callable[[bool], Iterator[str]]] = {
        "methods": _methods,
        "optimizers": _optimizers,
        "averagings": _averagings,
        "virtual": _virtual,
        "backbones": _backbones,
        "data": _data,
        "recipe": _recipe,
    }
    if kind is not None and kind not in listings:
        raise ValueError(f"there is no list of {kind!r}; {hint(kind, listings, otherwise='there are lists of')}")
    shown = listings if kind is None else {kind: listings[kind]}
    return [line for name, listing in shown.items() for line in (f"{name}:", *listing(verbose))]


def _hyperparameters(declared: Mapping[str, Hyperparameter], defaults: Mapping[str, Any]) -> Iterator[str]:
    for name, hyperparameter in declared.items():
        search = f"; search {hyperparameter.search}" if hyperparameter.search else ""
        default = "not given" if defaults.get(name) is None else defaults[name]
        yield f"      {name} = {default}: {hyperparameter.meaning}; {hyperparameter.allowed}{search}"


def _methods(verbose: bool) -> Iterator[str]:
    from mecam.methods import METHODS
    from mecam.methods.registry import defaults

    for name, method in METHODS.items():
        yield f"  {name}: {_first_line(method)}"
        if verbose:
            yield from _hyperparameters(method.hyperparameters, defaults(name))


def _optimizers(verbose: bool) -> Iterator[str]:
    from mecam.optim import OPTIMIZERS

    for name, entry in OPTIMIZERS.items():
        yield f"  {name}: {entry.summary} Passes: {entry.passes}."
        if verbose:
            yield from _hyperparameters(entry.hyperparameters, entry.defaults)


def _averagings(verbose: bool) -> Iterator[str]:
    from mecam.averaging import AVERAGINGS
    from mecam.averaging.registry import defaults

    for name, averaging in AVERAGINGS.items():
        yield f"  {name}: {_first_line(averaging)}"
        if verbose:
            yield from _hyperparameters(averaging.hyperparameters, defaults(name))


def _virtual(verbose: bool) -> Iterator[str]:
    from mecam.virtual import DOMAINS

    for name, domain in DOMAINS.items():
        yield f"  {name}: {_first_line(domain)}"
        if verbose:
            for setting, found in inspect.signature(domain).parameters.items():
                if isinstance(found.default, (int, float)):  # the others are objects, not settings
                    yield f"      {setting} = {found.default}"


def _backbones(verbose: bool) -> Iterator[str]:
    from mecam.models.registry import BACKBONES, TIMM
    from mecam.models.timm_models import HUB

    for name, entry in BACKBONES.items():
        yield f"  {name}: {entry.summary}"
        if verbose:
            size = f"{entry.image_size} x {entry.image_size} pixels"
            yield f"      {entry.parameters:,} parameters; {size}; weights: {entry.weights}"
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


def _recipe(verbose: bool) -> Iterator[str]:  # noqa: ARG001
    """The entries, with what they are if not given: for shapes, and for other data where that is something else."""
    shapes, other = recipe.make({}), recipe.make({"data": "other"})
    for name, value in shapes.to_dict().items():
        elsewhere = other.to_dict()[name]
        differs = value != elsewhere and name != "data"
        yield f"  {name} = {_toml(value)}" + (f" ({_toml(elsewhere)} for other data)" if differs else "")


def _toml(value: object) -> str:
    """A value as one would write it in a recipe."""
    return "not given" if value is None else json.dumps(value)


def _first_line(thing: type) -> str:
    return (thing.__doc__ or "").strip().splitlines()[0]

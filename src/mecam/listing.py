"""What there is to choose from, as lines of text."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from mecam import profiles, recipe
from mecam.near import hint
from mecam.optim.hyperparameters import Hyperparameter

# in the list of profiles: those with values of their own, and which
SHOWN: dict[str, tuple[dict[str, str], tuple[str, ...]]] = {
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
    """The listing of one kind, or of all."""
    listings: dict[str, Callable[[bool], Iterator[str]]] = {
        "methods": _methods,
        "optimizers": _optimizers,
        "averagings": _averagings,
        "virtual": _virtual,
        "backbones": _backbones,
        "data": _data,
        "profiles": _profiles,
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
            yield from _learning(name)
            declared = {key: value for key, value in entry.hyperparameters.items() if key not in ("lr", "weight_decay")}
            yield from _hyperparameters(declared, entry.defaults)


def _learning(optimizer: str) -> Iterator[str]:
    """Show the learning rate and weight decay of a run that does not set them."""
    shapes, other = (recipe.make({"data": data, "optimizer": optimizer}) for data in (recipe.Recipe.data, "other"))
    yield f"      lr = {shapes.lr:g} ({other.lr:g} for other data): learning rate"
    yield f"      weight_decay = {shapes.weight_decay:g}: weight decay"


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


def _profiles(verbose: bool) -> Iterator[str]:  # noqa: ARG001
    """Show the profiles' values side by side, a column per data set; DomainBed's differ on DomainNet alone."""
    for name, meaning in profiles.PROFILES.items():
        yield f"  {name}: {meaning}"
    size = profiles.RESNET50["image_size"]
    yield f"  both: backbone {profiles.V1} with its weights, frozen batch norm, images of {size} pixels"
    sets = list(profiles.hyperparameters())
    columns = {f"paper: {name}" if name == sets[0] else name: _profile("paper", name) for name in sets}
    columns |= {"domainbed": _profile("domainbed", sets[0]), "on DomainNet": _profile("domainbed", "DomainNet")}
    lines = [("", *columns)]
    lines += [(entry, *(column[entry] for column in columns.values())) for entry in next(iter(columns.values()))]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for first, *cells in lines:
        values = (cell.rjust(width) for cell, width in zip(cells, widths[1:], strict=True))
        yield f"  {first.ljust(widths[0])}  {'  '.join(values)}".rstrip()


def _profile(profile: str, data: str) -> dict[str, str]:
    """Collect what a profile gives on a data set: in general, and for those with values of their own."""
    found = {}
    for name, (parts, entries) in SHOWN.items():
        made = recipe.make({"data": data, "profile": profile, **parts})
        settings = _defaults(made) | made.optimizer_settings | made.method_settings | made.averaging_settings
        for entry in entries:
            found[f"{name}{entry}"] = f"{getattr(made, entry) if hasattr(made, entry) else settings[entry]:g}"
    return found


def _defaults(made: recipe.Recipe) -> dict[str, Any]:
    """Collect the default settings of a recipe's parts."""
    from mecam import averaging, methods, optim

    of_method, of_averaging = methods.registry.defaults(made.method), averaging.registry.defaults(made.averaging)
    return {**optim.OPTIMIZERS[made.optimizer].defaults, **of_method, **of_averaging}


def _recipe(verbose: bool) -> Iterator[str]:  # noqa: ARG001
    """The entries, with what they are if not given: for shapes, and for other data where that is something else."""
    shapes, other = recipe.make({}), recipe.make({"data": "other"})
    yield f"  profile = not given ({' or '.join(profiles.PROFILES)}: see mecam list profiles)"
    for name, value in shapes.to_dict().items():
        elsewhere = other.to_dict()[name]
        differs = value != elsewhere and name != "data"
        yield f"  {name} = {_toml(value)}" + (f" ({_toml(elsewhere)} for other data)" if differs else "")


def _toml(value: object) -> str:
    """A value as one would write it in a recipe."""
    return "not given" if value is None else json.dumps(value)


def _first_line(thing: type) -> str:
    return (thing.__doc__ or "").strip().splitlines()[0]

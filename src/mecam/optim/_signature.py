"""The constructor of an optimizer, from the hyperparameters and options that it declares."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from inspect import Parameter
from typing import Any

EXAMPLE = """\
    base_kwargs: options of the base optimizer (lr, weight_decay, ...).

Example:
    optimizer = {name}(model.parameters(), torch.optim.Adam, lr=1e-3, model=model)

    def closure():
        optimizer.zero_grad()
        loss = {loss}
        loss.backward()
        return loss

    loss = optimizer.step(closure)
"""


def complete(optimizer: Any, base: Any) -> None:
    """Give a subclass of `base` without a constructor of its own a signature and a complete docstring."""
    own = "__init__" in vars(optimizer)
    optimizer.__signature__ = _without_self(optimizer.__init__) if own else inspect.Signature([*_parameters(optimizer)])
    text = inspect.cleandoc(vars(optimizer).get("__doc__") or "")
    if text and not own:
        summary, _, options = text.partition("\n\nArgs:\n")
        meanings = "".join(f"    {name}: {each.meaning}.\n" for name, each in optimizer.hyperparameters.items())
        shared = inspect.cleandoc(base.__doc__).partition("\n\nArgs:\n")[2]
        rho, model, settings = (shared.index(f"    {name}:") for name in ("rho", "model", "settings"))
        args = shared[:rho] + meanings + (f"{options}\n" if options else "") + shared[model:settings]
        example = EXAMPLE.format(name=optimizer.__name__, loss=optimizer.example_loss)
        optimizer.__doc__ = f"{summary}\n\nArgs:\n{args}{example}"


def separate(optimizer: Any, rho: Any, settings: dict[str, Any]) -> tuple[dict[str, Any], ...]:
    """Return the method's hyperparameters, its own options, and what is left for the base optimizer."""
    if isinstance(rho, Mapping):
        raise TypeError(f"rho is a dict; {optimizer.__name__} takes hyperparameters as keywords: rho=0.05, ...")
    settings = settings if rho is None else {**settings, "rho": rho}
    values = {name: settings.pop(name, each.default) for name, each in optimizer.hyperparameters.items()}
    options = {name: settings.pop(name, default) for name, default in optimizer.options.items()}
    if missing := [name for name, value in values.items() if value is None]:
        raise TypeError(f"{optimizer.__name__} needs {', '.join(missing)}; it has no default")
    return values, options, settings


def _parameters(optimizer: Any) -> Iterator[Parameter]:
    """Yield the base class's parameters, with the method's own hyperparameters and options in place of `settings`."""
    own = {name: each.default for name, each in optimizer.hyperparameters.items()} | dict(optimizer.options)
    for parameter in _without_self(optimizer.__init__).parameters.values():
        if parameter.name == "rho":
            if "rho" in own:
                yield parameter.replace(default=own.pop("rho"))
            yield from (Parameter(name, Parameter.KEYWORD_ONLY, default=value) for name, value in own.items())
        elif parameter.kind is Parameter.VAR_KEYWORD:
            yield parameter.replace(name="base_kwargs")
        else:
            yield parameter


def _without_self(init: Any) -> inspect.Signature:
    signature = inspect.signature(init)
    return signature.replace(parameters=[each for name, each in signature.parameters.items() if name != "self"])

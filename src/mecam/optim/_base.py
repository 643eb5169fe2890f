"""The base optimizer below a sharpness-aware one: built, or refused with the reason."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch.optim import Optimizer
from torch.optim.optimizer import ParamsT

BaseOptimizer = type[Optimizer] | Callable[..., Optimizer]

REFUSED = {
    torch.optim.LBFGS: "it runs the closure itself, at weights of its own choice",
    torch.optim.SparseAdam: "sparse gradients are not supported",
}


def build(base_optimizer: BaseOptimizer, params: ParamsT, kwargs: Mapping[str, Any]) -> Optimizer:
    """The base optimizer of these parameters, from a class or a function."""
    if isinstance(base_optimizer, Optimizer) or not callable(base_optimizer):
        raise TypeError(
            f"base_optimizer is a {type(base_optimizer).__name__} object; give the class (torch.optim.Adam, its "
            "arguments as keywords) or a function of the parameters (lambda params: torch.optim.Adam(params, lr=1e-3))"
        )
    if isinstance(base_optimizer, type):
        _refuse(base_optimizer)
    built = base_optimizer(params, **kwargs)
    if not isinstance(built, Optimizer):
        raise TypeError(f"base_optimizer returned a {type(built).__name__}, not a torch.optim.Optimizer")
    _refuse(type(built))
    return built


def refuse_clashes(base: Optimizer, owner: str, names: Iterable[str]) -> None:
    """A base with a hyperparameter of the same name (Adadelta's rho, RMSprop's alpha) would share its entry."""
    for name in names:
        if name in base.defaults:
            raise ValueError(
                f"{type(base).__name__} has a hyperparameter {name!r} of its own, and so has {owner}: they would share "
                "one entry of param_groups. Take another base optimizer"
            )


def wants_hessian(base: Optimizer) -> bool:
    """Whether the base's step takes an estimate of the Hessian diagonal, as AdaHessian's does."""
    return "hessian" in inspect.signature(type(base).step).parameters


def _refuse(base: type) -> None:
    for refused, reason in REFUSED.items():
        if issubclass(base, refused):
            raise ValueError(f"{base.__name__} cannot be the base optimizer: {reason}")
    if hasattr(base, "gradient") and hasattr(base, "hyperparameters"):
        raise ValueError(f"{base.__name__} cannot be the base optimizer: it is sharpness-aware itself")

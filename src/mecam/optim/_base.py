"""Build and check the base optimizer of a sharpness-aware optimizer."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from difflib import get_close_matches
from typing import Any

import torch
from torch.optim import Optimizer
from torch.optim.optimizer import ParamsT

from mecam.near import hint

BaseOptimizer = type[Optimizer] | Callable[..., Optimizer]

REFUSED = {
    torch.optim.LBFGS: "it runs the closure itself, at weights of its own choice",
    torch.optim.SparseAdam: "sparse gradients are not supported",
}
REFUSED_BY_NAME = {  # of other libraries
    "AdaLOMO": "it updates the weights inside backward",
    "Adahessian": "it differentiates the gradient inside its step; pytorch_optimizer's AdaHessian can be",
    "AliG": "its step needs the loss",
    "BSAM": "it is sharpness-aware itself",
    "LOMO": "it updates the weights inside backward",
}


def build(owner: type, base_optimizer: BaseOptimizer, params: ParamsT, kwargs: Mapping[str, Any]) -> Optimizer:
    """Build the base optimizer from a class or a function, for an optimizer of class `owner`."""
    if isinstance(base_optimizer, Optimizer) or not callable(base_optimizer):
        raise TypeError(
            f"base_optimizer is a {type(base_optimizer).__name__} object; give the class (torch.optim.Adam, its "
            "arguments as keywords) or a function of the parameters (lambda params: torch.optim.Adam(params, lr=1e-3))"
        )
    _refuse_shard(owner.__name__)
    if isinstance(base_optimizer, type):
        _refuse(base_optimizer)
    _refuse_typos(owner, base_optimizer, kwargs)
    built = base_optimizer(params, **kwargs)
    if not isinstance(built, Optimizer):
        raise TypeError(f"base_optimizer returned a {type(built).__name__}, not a torch.optim.Optimizer")
    _refuse(type(built))
    return built


def options_of(classes: Iterable[type]) -> list[str]:
    """Return the keyword arguments of these classes' constructors."""
    signatures = (inspect.signature(each).parameters.values() for each in classes)
    names = {p.name for parameters in signatures for p in parameters if p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)}
    return sorted(names - {"params", "base_optimizer"})


def refuse_clashes(given: BaseOptimizer, owner: str, names: Sequence[str]) -> None:
    """Refuse a keyword that the base has as well (Adadelta's rho, RMSprop's alpha): it is ambiguous."""
    if names and isinstance(given, type):
        name, base_name = names[0], given.__name__
        raise ValueError(
            f"{base_name} has a hyperparameter {name!r} of its own, and so has {owner}. Give the base optimizer as a "
            f"function, which sets its own: {owner}(params, lambda p: {base_name}(p, {name}=...), {name}=...). In "
            f"param_groups {name!r} is then {base_name}'s and 'sharpness_{name}' is {owner}'s"
        )


def wants_hessian(base: Optimizer) -> bool:
    """Return whether the base's step takes an estimate of the Hessian diagonal (AdaHessian)."""
    return "hessian" in inspect.signature(type(base).step).parameters


def _refuse(base: type) -> None:
    by_name = [REFUSED_BY_NAME[each.__name__] for each in base.__mro__ if each.__name__ in REFUSED_BY_NAME]
    for reason in [reason for refused, reason in REFUSED.items() if issubclass(base, refused)] + by_name:
        raise ValueError(f"{base.__name__} cannot be the base optimizer: {reason}")
    if hasattr(base, "gradient") and hasattr(base, "hyperparameters"):
        raise ValueError(f"{base.__name__} cannot be the base optimizer: it is sharpness-aware itself")


def _refuse_typos(owner: type, base: BaseOptimizer, kwargs: Collection[str]) -> None:
    """Refuse an unknown keyword and list the known ones. Some base optimizers would ignore it."""
    parameters = inspect.signature(base).parameters.values()
    swallows = any(p.kind is p.VAR_KEYWORD for p in parameters)
    if swallows and not isinstance(base, type):
        return  # a function that passes them on
    own = options_of(each for each in owner.__mro__ if issubclass(each, Optimizer) and each is not Optimizer)
    theirs = [p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)][1:]
    known = sorted({*own, *theirs})
    for keyword in kwargs:
        # where a class takes any keyword, only a near miss is a typo
        if keyword not in known and (not swallows or get_close_matches(keyword, known, cutoff=0.8)):
            name = getattr(base, "__name__", "the base optimizer")
            raise TypeError(f"neither {owner.__name__} nor {name} has an option {keyword!r}; {hint(keyword, known)}")


def _refuse_shard(owner: str) -> None:
    """Refuse to be built by ZeroRedundancyOptimizer: it would perturb this rank's parameters only."""
    if "torch.distributed.optim.zero_redundancy_optimizer" not in sys.modules:
        return
    frame = sys._getframe()
    while frame is not None:
        if frame.f_code.co_filename.endswith("zero_redundancy_optimizer.py"):
            raise ValueError(
                f"{owner} inside ZeroRedundancyOptimizer would perturb this rank's share of the parameters only. Put "
                f"ZeroRedundancyOptimizer inside: {owner}(params, lambda p: ZeroRedundancyOptimizer(p, "
                "optimizer_class=torch.optim.Adam, lr=...))"
            )
        frame = frame.f_back  # type: ignore[assignment]

"""Every optimizer by name."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeVar, overload

from torch.optim import SGD, Adam, AdamW, Optimizer
from torch.optim.optimizer import ParamsT

from mecam.hyperparameters import Choice, Hyperparameter, LogUniform
from mecam.optim._base import BaseOptimizer, options_of
from mecam.optim.asam import ASAM
from mecam.optim.crsam import CRSAM
from mecam.optim.dgsam import DGSAM
from mecam.optim.disam import DISAM
from mecam.optim.esam import ESAM
from mecam.optim.fad import FAD
from mecam.optim.fsam import FSAM
from mecam.optim.gam import GAM
from mecam.optim.gsam import GSAM
from mecam.optim.looksam import LookSAM
from mecam.optim.mecam import MeCAM
from mecam.optim.msam import MSAM
from mecam.optim.muon import MuonAdamW
from mecam.optim.sagm import SAGM
from mecam.optim.sam import SAM
from mecam.optim.sharpness import SharpnessAware
from mecam.optim.stablesam import StableSAM
from mecam.optim.vasso import VaSSO
from mecam.optim.wsam import WSAM
from mecam.registry import Registry, check_settings, first_line

Method = Literal["sam", "asam", "gsam", "gam", "sagm", "fad", "crsam", "fsam", "esam", "looksam", "wsam", "msam",
                 "vasso", "stablesam", "disam", "dgsam", "mecam", "thinmecam"]  # fmt: skip
Kind = TypeVar("Kind", bound=Optimizer)
PLAIN = {
    "lr": Hyperparameter("learning rate", search=LogUniform(-5, -3.5)),
    "weight_decay": Hyperparameter("weight decay", search=LogUniform(-6, -2)),
    "momentum": Hyperparameter("momentum", high=1, open_high=True, search=Choice((0.0, 0.9))),
}


@dataclass(frozen=True)
class OptimizerEntry:
    """An optimizer, its hyperparameters and the passes per step."""

    name: str
    summary: str
    passes: int
    hyperparameters: Mapping[str, Hyperparameter]
    defaults: Mapping[str, Any]
    sharpness_aware: type[SharpnessAware] | None = None
    stands_for: Mapping[str, Any] = field(default_factory=dict)  # settings of the class that the name includes
    plain: type[Optimizer] | None = None  # None for a plain optimizer of pytorch_optimizer, imported when built


def _sharpness_aware(method: type[SharpnessAware], documented: object) -> OptimizerEntry:
    parameters = inspect.signature(method).parameters
    return OptimizerEntry(
        name=method.__name__.lower(),
        summary=first_line(documented),
        passes=method.passes,
        hyperparameters=method.hyperparameters,
        defaults={name: parameters[name].default for name in method.hyperparameters if name in parameters},
        sharpness_aware=method,
    )


def _plain(name: str, plain: type[Optimizer] | None, summary: str, **defaults: Any) -> OptimizerEntry:
    return OptimizerEntry(name, summary, 1, {key: PLAIN[key] for key in defaults}, defaults, plain=plain)


OWN = (SAM, ASAM, GSAM, GAM, SAGM, FAD, CRSAM, FSAM, ESAM, LookSAM, WSAM, MSAM, VaSSO, StableSAM, DISAM, DGSAM,
       MeCAM)  # fmt: skip
THIN = replace(
    _sharpness_aware(MeCAM, inspect.getmodule(MeCAM)),
    name="thinmecam",
    summary="MeCAM with every=3; an alias that older recipes use.",
    stands_for={"every": 3},
)
OPTIMIZERS: Registry[OptimizerEntry] = Registry(
    "optimizer",
    (
        _plain("adam", Adam, "Adam, weight decay coupled to the gradient.", lr=5e-5, weight_decay=0.0),
        _plain("adamw", AdamW, "Adam with decoupled weight decay.", lr=5e-5, weight_decay=0.0),
        _plain("sgd", SGD, "Stochastic gradient descent with momentum.", lr=1e-3, weight_decay=0.0, momentum=0.9),
        _plain("yogi", None, "Adam whose second moment grows slowly.", lr=1e-2, weight_decay=0.0),
        _plain("adabelief", None, "Adam scaled by the surprise in the gradient.", lr=1e-3, weight_decay=0.0),
        _plain("adahessian", None, "Adam scaled by the Hessian diagonal.", lr=1e-1, weight_decay=0.0),
        _plain("muon", MuonAdamW, "Orthogonal steps for matrices, AdamW for the rest.", lr=5e-5, weight_decay=0.0),
        _plain("schedulefree", None, "AdamW evaluated at an average of its weights.", lr=1e-4, weight_decay=0.0),
        _plain("ademamix", None, "AdamW with a second, slow running mean.", lr=5e-5, weight_decay=0.0),
        _plain("soap", None, "Adam in the eigenbasis of Shampoo's preconditioner.", lr=5e-5, weight_decay=0.0),
        _plain("lion", None, "The sign of a running mean.", lr=1e-5, weight_decay=0.0),
        *(_sharpness_aware(method, inspect.getmodule(method)) for method in OWN),
        THIN,
    ),
    note="register your own first, in Python: mecam.optim.register",
    examples={"curvemecam": "curvature_radius.py", "innermecam": "inner_step.py"},
)
find = OPTIMIZERS.find
FROM_PACKAGE = {  # pytorch_optimizer
    "yogi": "Yogi",
    "adabelief": "AdaBelief",
    "adahessian": "AdaHessian",
    "schedulefree": "ScheduleFreeAdamW",
    "ademamix": "AdEMAMix",
    "soap": "SOAP",
    "lion": "Lion",
}
# the protocol's weight decay is coupled to the gradient, as Adam's; the later optimizers keep that of their papers
DECOUPLED = {"yogi": False, "adabelief": False, "adahessian": False, "ademamix": True}


def register(optimizer: type[Kind]) -> type[Kind]:
    """Make your own optimizer available by its class name in lower case, in this process; a decorator.

    A subclass of `SharpnessAware`, or a plain optimizer, which can then be a base too.
    """
    if issubclass(optimizer, SharpnessAware):
        OPTIMIZERS.register(_sharpness_aware(optimizer, optimizer))
    else:
        parameters = inspect.signature(optimizer).parameters.values()
        defaults = {p.name: p.default for p in parameters if p.name in PLAIN and p.default is not p.empty}
        OPTIMIZERS.register(_plain(optimizer.__name__.lower(), optimizer, first_line(optimizer), **defaults))
    return optimizer


@overload
def create(name: Method, params: ParamsT, *, base: str | BaseOptimizer = "adam", **settings: Any) -> SharpnessAware: ...
@overload
def create(name: str, params: ParamsT, *, base: str | BaseOptimizer = "adam", **settings: Any) -> Optimizer: ...
def create(name: str, params: ParamsT, *, base: str | BaseOptimizer = "adam", **settings: Any) -> Optimizer:
    """Create the optimizer of this name on `params`.

        create("mecam", model.parameters(), lr=3e-5, alpha=0.2, model=model)

    Args:
        name: a key of OPTIMIZERS.
        params: parameters or parameter groups.
        base: the base of a sharpness-aware optimizer, as a name, a class, or a function of the parameters.
        settings: keywords of the optimizer and of its base.
    """
    entry = find(name)
    if isinstance(base, str):
        below = _below(name, base)
        check_settings(name, settings, known_settings(name, base=base), below.hyperparameters)
        fixed = {"weight_decouple": DECOUPLED[below.name]} if below.name in DECOUPLED else {}
        base, settings = _load(below), {**below.defaults, **fixed, **settings}
        if entry.sharpness_aware is not None and set(entry.hyperparameters) & set(options_of([base])):
            base = _as_function(base)  # AdEMAMix has an alpha of its own: the setting is the sharpness-aware one's
    elif entry.sharpness_aware is None:
        raise ValueError(f"base={base!r} is not used: {name} is not sharpness-aware")
    if entry.sharpness_aware is None:
        return base(params, **settings)
    return entry.sharpness_aware(params, base, **{**entry.stands_for, **settings})


def known_settings(name: str, *, base: str = "adam") -> list[str]:
    """Return the settings that `create` takes: the keywords of the optimizer's classes and of its base."""
    entry = find(name)
    above = () if entry.sharpness_aware is None else entry.sharpness_aware.__mro__
    return options_of([_load(_below(name, base)), *(each for each in above if issubclass(each, SharpnessAware))])


def _below(name: str, base: str) -> OptimizerEntry:
    """Return the optimizer that updates the weights: itself, or the base of a sharpness-aware one."""
    entry = find(name)
    below = entry if entry.sharpness_aware is None else find(base)
    if below.sharpness_aware is not None:
        raise ValueError(f"{base} is sharpness-aware itself; the base must be a plain optimizer such as adam")
    return below


IN_GROUPS = {"step": 0, "weight_sum": 0.0, "lr_max": -1.0}


def clear_state(optimizer: Optimizer) -> None:
    """Clear the moments and step count of the optimizer, or of its base."""
    base: Optimizer = getattr(optimizer, "base_optimizer", optimizer)
    base.state.clear()
    for group in base.param_groups:
        # what pytorch_optimizer keeps there: its count of steps, and the weights in Schedule-Free's average
        group.update({name: start for name, start in IN_GROUPS.items() if name in group})


def _as_function(base: type[Optimizer]) -> BaseOptimizer:
    return lambda params, **settings: base(params, **settings)


def _load(entry: OptimizerEntry) -> type[Optimizer]:
    if entry.plain is not None:
        return entry.plain
    try:
        package = importlib.import_module("pytorch_optimizer")
    except ImportError as error:
        raise ImportError(
            f"the optimizer {entry.name!r} comes from the package pytorch_optimizer (4.1 or newer): "
            "pip install 'mecam[optimizers]'"
        ) from error
    loaded: type[Optimizer] = getattr(package, FROM_PACKAGE[entry.name])
    return loaded


__all__ = ["OPTIMIZERS", "OptimizerEntry", "clear_state", "create", "find", "known_settings", "register"]

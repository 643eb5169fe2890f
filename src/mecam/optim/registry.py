"""Every optimizer by name, with the hyperparameters it brings: default, meaning, allowed range, search space."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, overload

from torch.optim import Optimizer
from torch.optim.optimizer import ParamsT

from mecam.near import hint
from mecam.optim._base import BaseOptimizer, options_of
from mecam.optim.asam import ASAM
from mecam.optim.crsam import CRSAM
from mecam.optim.curvemecam import CurveMeCAM
from mecam.optim.esam import ESAM
from mecam.optim.fad import FAD
from mecam.optim.fsam import FSAM
from mecam.optim.gam import GAM
from mecam.optim.gsam import GSAM
from mecam.optim.hyperparameters import Choice, Hyperparameter, LogUniform
from mecam.optim.innermecam import InnerMeCAM
from mecam.optim.looksam import LookSAM
from mecam.optim.mecam import MeCAM
from mecam.optim.sagm import SAGM
from mecam.optim.sam import SAM
from mecam.optim.sharpness import SharpnessAware
from mecam.optim.thinmecam import ThinMeCAM
from mecam.optim.wsam import WSAM

Method = Literal["sam", "asam", "gsam", "gam", "sagm", "fad", "crsam", "fsam", "esam", "looksam", "wsam", "mecam",
                 "thinmecam", "curvemecam", "innermecam"]  # fmt: skip
LEARNING_RATE = Hyperparameter("learning rate", search=LogUniform(-5, -3.5))
WEIGHT_DECAY = Hyperparameter("weight decay", search=LogUniform(-6, -2))
MOMENTUM = Hyperparameter("momentum", high=1, open_high=True, search=Choice((0.0, 0.9)))


@dataclass(frozen=True)
class Entry:
    """An optimizer: what it is called, what one can set, and how many passes a step takes."""

    name: str
    summary: str
    passes: int
    hyperparameters: Mapping[str, Hyperparameter]
    defaults: Mapping[str, Any]
    sharpness_aware: type[SharpnessAware] | None = None
    plain: tuple[str, str] | None = None  # module and class, imported when built
    fixed: Mapping[str, Any] | None = None  # what the protocol sets beyond the class's own defaults


def _sharpness_aware(method: type[SharpnessAware]) -> Entry:
    signature = inspect.signature(method.__init__).parameters
    return Entry(
        name=method.__name__.lower(),
        summary=inspect.getdoc(inspect.getmodule(method)) or "",
        passes=method.passes,
        hyperparameters=method.hyperparameters,
        defaults={name: signature[name].default for name in method.hyperparameters},
        sharpness_aware=method,
    )


def _plain(name: str, module: str, class_name: str, summary: str, *, lr: float, momentum: float | None = None) -> Entry:
    # other libraries decay weights decoupled from the gradient unless told; the protocol's decay is Adam's, coupled
    fixed = {} if module == "torch.optim" else {"weight_decouple": False}
    hyperparameters = {"lr": LEARNING_RATE, "weight_decay": WEIGHT_DECAY}
    defaults = {"lr": lr, "weight_decay": 0.0}
    if momentum is not None:
        hyperparameters["momentum"], defaults["momentum"] = MOMENTUM, momentum
    return Entry(name, summary, 1, hyperparameters, defaults, plain=(module, class_name), fixed=fixed)


OPTIMIZERS: Mapping[str, Entry] = {
    entry.name: entry
    for entry in (
        _plain("adam", "torch.optim", "Adam", "Adam, weight decay coupled to the gradient.", lr=5e-5),
        _plain("adamw", "torch.optim", "AdamW", "Adam with decoupled weight decay.", lr=5e-5),
        _plain("sgd", "torch.optim", "SGD", "Stochastic gradient descent with momentum.", lr=1e-3, momentum=0.9),
        _plain("yogi", "pytorch_optimizer", "Yogi", "Adam whose second moment grows slowly.", lr=1e-2),
        _plain("adabelief", "pytorch_optimizer", "AdaBelief", "Adam scaled by the surprise in the gradient.", lr=1e-3),
        _plain("adahessian", "pytorch_optimizer", "AdaHessian", "Adam scaled by the Hessian diagonal.", lr=1e-1),
        *map(_sharpness_aware, (SAM, ASAM, GSAM, GAM, SAGM, FAD, CRSAM, FSAM, ESAM, LookSAM, WSAM, MeCAM)),
        *map(_sharpness_aware, (ThinMeCAM, CurveMeCAM, InnerMeCAM)),  # beyond the paper
    )
}


def find(name: str) -> Entry:
    """The entry of this name; an unknown name is an error with near matches."""
    if name in OPTIMIZERS:
        return OPTIMIZERS[name]
    raise ValueError(f"there is no optimizer {name!r}; {hint(name, OPTIMIZERS)}")


@overload
def create(name: Method, params: ParamsT, *, base: str | BaseOptimizer = "adam", **settings: Any) -> SharpnessAware: ...
@overload
def create(name: str, params: ParamsT, *, base: str | BaseOptimizer = "adam", **settings: Any) -> Optimizer: ...
def create(name: str, params: ParamsT, *, base: str | BaseOptimizer = "adam", **settings: Any) -> Optimizer:
    """Build the optimizer of this name on `params`.

        create("mecam", model.parameters(), lr=3e-5, alpha=0.2, model=model)

    Args:
        name: a key of OPTIMIZERS.
        params: parameters or parameter groups.
        base: of a sharpness-aware optimizer, the base: a name, a class, or a function of the parameters.
        settings: for the method and its base alike, each by its keyword.
    """
    entry = find(name)
    if not isinstance(base, str):
        if entry.sharpness_aware is None:
            raise ValueError(f"base={base!r} has no use: {name} is not a sharpness-aware optimizer")
        build: Any = entry.sharpness_aware
        made: SharpnessAware = build(params, base, **settings)
        return made
    below = _below(name, base)
    plain = _load(below)
    _check(name, settings, below, known_settings(name, base=base))
    merged = {**below.defaults, **(below.fixed or {}), **settings}
    return plain(params, **merged) if entry.sharpness_aware is None else entry.sharpness_aware(params, plain, **merged)


def known_settings(name: str, *, base: str = "adam") -> list[str]:
    """List what `create` takes for this optimizer: the options of its class, of those above it, and of its base."""
    entry = find(name)
    above = () if entry.sharpness_aware is None else entry.sharpness_aware.__mro__
    return options_of([_load(_below(name, base)), *(each for each in above if issubclass(each, SharpnessAware))])


def _below(name: str, base: str) -> Entry:
    """Return the optimizer that updates the weights: the base of a sharpness-aware one."""
    entry = find(name)
    below = entry if entry.sharpness_aware is None else find(base)
    if below.sharpness_aware is not None:
        raise ValueError(f"{base} is sharpness-aware itself; the base must be a plain optimizer such as adam")
    return below


def _check(name: str, settings: Mapping[str, Any], below: Entry, known: Sequence[str]) -> None:
    """Refuse a setting that no class names (some swallow any), and values that no plain optimizer takes."""
    for setting, value in settings.items():
        if setting not in known:
            near = hint(setting, known, otherwise="it has")
            everything = f" It has {', '.join(known)}" if near.endswith("?") else ""
            raise ValueError(f"{name} has no setting {setting!r}; {near}{everything}")
        if setting in below.hyperparameters:
            below.hyperparameters[setting].check(below.name, setting, value)


def clear_state(optimizer: Optimizer) -> None:
    """Let the optimizer, or the base of a sharpness-aware one, forget its moments and step count."""
    base: Optimizer = getattr(optimizer, "base_optimizer", optimizer)
    base.state.clear()
    for group in base.param_groups:
        if "step" in group:  # where pytorch_optimizer counts
            group["step"] = 0


def _load(entry: Entry) -> type[Optimizer]:
    module, class_name = entry.plain  # type: ignore[misc]
    try:
        found: type[Optimizer] = getattr(importlib.import_module(module), class_name)
    except ImportError as error:
        raise ImportError(
            f"the optimizer {entry.name!r} comes from the package pytorch_optimizer (4.1 or newer): "
            "pip install 'mecam[optimizers]'"
        ) from error
    return found


__all__ = ["OPTIMIZERS", "Entry", "clear_state", "create", "find", "known_settings"]

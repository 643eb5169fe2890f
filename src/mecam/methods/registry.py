"""Every method by name."""

from __future__ import annotations

import inspect
from typing import Any, TypeVar

from mecam.methods.andmask import ANDMask
from mecam.methods.arm import ARM
from mecam.methods.base import Method
from mecam.methods.cdann import CDANN
from mecam.methods.coral import CORAL
from mecam.methods.dann import DANN
from mecam.methods.erm import ERM
from mecam.methods.fish import Fish
from mecam.methods.fishr import Fishr
from mecam.methods.groupdro import GroupDRO
from mecam.methods.heldout import HeldOut
from mecam.methods.irm import IRM
from mecam.methods.lpft import LPFT
from mecam.methods.madg import MADG
from mecam.methods.mdsdi import MDSDI
from mecam.methods.miro import MIRO
from mecam.methods.mixstyle import MixStyle
from mecam.methods.mixup import Mixup
from mecam.methods.mldg import MLDG
from mecam.methods.mmd import MMD
from mecam.methods.mtl import MTL
from mecam.methods.rsc import RSC
from mecam.methods.sagnet import SagNet
from mecam.methods.sandmask import SANDMask
from mecam.methods.selfreg import SelfReg
from mecam.methods.vrex import VREx
from mecam.near import hint

Kind = TypeVar("Kind", bound=Method)
METHODS: dict[str, type[Method]] = {
    method.name: method
    for method in (
        ERM,
        MMD,
        CORAL,
        MixStyle,
        GroupDRO,
        IRM,
        ARM,
        VREx,
        ANDMask,
        SANDMask,
        DANN,
        CDANN,
        MTL,
        Mixup,
        MLDG,
        Fish,
        SagNet,
        SelfReg,
        MDSDI,
        Fishr,
        MIRO,
        LPFT,
        MADG,
        RSC,
        HeldOut,
    )
}


def register(method: type[Kind]) -> type[Kind]:
    """Make a method of your own known by its name, in this process; a decorator.

    Other processes, such as the workers of `mecam bench`, know the methods of this package alone.
    """
    name = getattr(method, "name", None)
    if not isinstance(name, str) or not name.isidentifier():
        raise ValueError(f"{method.__name__} has no name to be known by; give the class one, such as name = 'tilt'")
    known = METHODS.get(name)
    if known is not None and f"{known.__module__}.{known.__qualname__}" != f"{method.__module__}.{method.__qualname__}":
        raise ValueError(f"there is a method {name!r} already, {known.__name__}; give {method.__name__} another name")
    METHODS[name] = method
    return method


def find(name: str) -> type[Method]:
    """The method of this name; an unknown name is an error with near matches."""
    if name in METHODS:
        return METHODS[name]
    raise ValueError(
        f"there is no method {name!r}; {hint(name, METHODS)} (a method of your own must be registered first, in "
        "Python, before a run of it is made or opened: mecam.methods.register)"
    )


def create(name: str, **settings: Any) -> Method:
    """The method of this name with these hyperparameters."""
    method = find(name)
    for key, value in settings.items():
        if key not in method.hyperparameters:
            known = ", ".join(method.hyperparameters) or "none"
            raise ValueError(f"{name} has no hyperparameter {key!r}; it has {known}")
        method.hyperparameters[key].check(name, key, value)
    return method(**settings)


def defaults(name: str) -> dict[str, Any]:
    """The method's hyperparameters where none are given."""
    parameters = inspect.signature(find(name).__init__).parameters
    return {key: parameters[key].default for key in find(name).hyperparameters}

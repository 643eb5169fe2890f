"""The meta pass on a virtual domain and its weights, shared by MeCAM and its variants."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any, ClassVar

from torch import Tensor

from mecam.hyperparameters import Choice, Hyperparameter
from mecam.optim._options import outside
from mecam.optim._passes import VirtualDomain
from mecam.optim.sharpness import SharpnessAware

WEIGHTS = Choice((0.05, 0.1, 0.15, 0.2))
RADIUS = Hyperparameter("radius of the perturbation", default=0.1, search=Choice((0.01, 0.05, 0.1, 0.2)))
ALPHA = Hyperparameter("weight of the gap f(θ+δ) − f(θ)", default=0.1, high=1, search=WEIGHTS)
BETA = Hyperparameter(
    "weight of the gap m(θ−δ) − f(θ); the paper asks for beta ≤ alpha", default=0.1, high=1, search=WEIGHTS
)


class Meta(SharpnessAware):
    """An optimizer with one pass on a virtual domain, an object with `active()`."""

    options: ClassVar[Mapping[str, Any]] = {"virtual_domain": None}
    virtual_domain: VirtualDomain | None

    def check_settings(self, options: Mapping[str, Any]) -> None:
        super().check_settings(options)
        domain = options["virtual_domain"]
        if isinstance(domain, type):
            name = domain.__name__
            raise TypeError(f"virtual_domain is the class {name}; give an object: {name}().attach(model, layers)")
        if domain is not None and not callable(getattr(domain, "active", None)):
            raise TypeError(
                f"virtual_domain is a {type(domain).__name__}; it must have a method active() that returns a context "
                "manager, as mecam.virtual.MixStyle has"
            )

    def check(self, group: Mapping[str, Any]) -> None:
        """Refuse alpha and beta that give the plain gradient a negative weight."""
        owner, alpha, beta = type(self).__name__, group["alpha"], group["beta"]
        if any(isinstance(weight, Tensor) and weight.device.type != "cpu" for weight in (alpha, beta)):
            return  # reading it would synchronize
        total = float(alpha + beta)  # tensors in their own precision, in which 0.7 + 0.3 is 1
        alpha, beta = float(alpha), float(beta)
        if total > 1:
            raise ValueError(
                f"{owner}: alpha={alpha!r} and beta={beta!r} add up to {total:g}; alpha + beta must be in [0, 1], "
                "or the plain gradient is ascended"
            )
        if beta > alpha:
            warnings.warn(
                f"{owner}: beta={beta!r} > alpha={alpha!r}; the paper's condition is beta <= alpha",
                stacklevel=outside(),
            )

"""What MeCAM and its variants share: a pass on a virtual domain, and two weights that go together."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

from torch import Tensor
from torch.optim.optimizer import ParamsT

from mecam.optim._base import BaseOptimizer
from mecam.optim._options import outside
from mecam.optim._passes import VirtualDomain
from mecam.optim.hyperparameters import Choice, Hyperparameter
from mecam.optim.sharpness import SharpnessAware

WEIGHTS = Choice((0.05, 0.1, 0.15, 0.2))
RADIUS = Hyperparameter("radius of the perturbation", search=Choice((0.01, 0.05, 0.1, 0.2)))
ALPHA = Hyperparameter("weight of the gap f(θ+δ) − f(θ)", high=1, search=WEIGHTS)
BETA = Hyperparameter("weight of the gap m(θ−δ) − f(θ); the paper asks for beta ≤ alpha", high=1, search=WEIGHTS)


class Meta(SharpnessAware):
    """An optimizer one of whose passes is on a virtual domain: an object with `active()`, on in that pass alone."""

    def __init__(
        self,
        params: ParamsT,
        base_optimizer: BaseOptimizer,
        values: Mapping[str, float | Tensor],
        *,
        virtual_domain: VirtualDomain | None = None,
        **options: Any,
    ) -> None:
        if virtual_domain is not None and not callable(getattr(virtual_domain, "active", None)):
            raise TypeError(
                f"virtual_domain is a {type(virtual_domain).__name__}; it must have a method active() that returns a "
                "context manager, as mecam.virtual.MixStyle has"
            )
        self.virtual_domain = virtual_domain
        super().__init__(params, base_optimizer, values, **options)


def check_weights(owner: str, alpha: float | Tensor, beta: float | Tensor) -> None:
    """Refuse weights that leave the plain gradient a negative one."""
    if any(isinstance(weight, Tensor) and weight.device.type != "cpu" for weight in (alpha, beta)):
        return  # to read it would stop the device
    total = float(alpha + beta)  # of tensors in their own precision, in which 0.7 and 0.3 are 1
    alpha, beta = float(alpha), float(beta)
    if total > 1:
        raise ValueError(
            f"{owner}: alpha={alpha!r} and beta={beta!r} add up to {total:g}; alpha + beta must be in [0, 1], "
            "or the plain gradient is ascended"
        )
    if beta > alpha:
        warnings.warn(
            f"{owner}: beta={beta!r} > alpha={alpha!r}; the paper's condition is beta <= alpha", stacklevel=outside()
        )

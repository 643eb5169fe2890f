"""MeCAM, Meta Curvature-Aware Minimization."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn
from torch.optim.optimizer import ParamsT

from mecam.optim._base import BaseOptimizer
from mecam.optim._passes import GradAt, VirtualDomain
from mecam.optim.hyperparameters import Choice, Hyperparameter
from mecam.optim.sharpness import SharpnessAware
from mecam.optim.vector import Vector, unit

WEIGHTS = Choice((0.05, 0.1, 0.15, 0.2))


class MeCAM(SharpnessAware):
    """Minimises f(θ) + α (f(θ+δ) − f(θ)) + β (m(θ−δ) − f(θ)), δ = ρ ∇f(θ)/‖∇f(θ)‖ held constant.

        g ← (1 − α − β) ∇f(θ) + α ∇f(θ+δ) + β ∇m(θ−δ)

    m is f on a virtual unseen domain: `virtual_domain`, an object with `active()` such as mecam.virtual.MixStyle, is on
    in that pass alone. Without one m is f. Three passes.
    """

    passes = 3
    hyperparameters = {
        "rho": Hyperparameter("radius of the perturbation", search=Choice((0.01, 0.05, 0.1, 0.2))),
        "alpha": Hyperparameter("weight of the gap f(θ+δ) − f(θ)", high=1, search=WEIGHTS),
        "beta": Hyperparameter(
            "weight of the gap m(θ−δ) − f(θ); the paper asks for beta ≤ alpha", high=1, search=WEIGHTS
        ),
    }

    def __init__(
        self,
        params: ParamsT,
        base_optimizer: BaseOptimizer,
        *,
        rho: float | Tensor = 0.1,
        alpha: float | Tensor = 0.1,
        beta: float | Tensor = 0.1,
        virtual_domain: VirtualDomain | None = None,
        model: nn.Module | None = None,
        **options: Any,
    ) -> None:
        if virtual_domain is not None and not callable(getattr(virtual_domain, "active", None)):
            raise TypeError(
                f"virtual_domain is a {type(virtual_domain).__name__}; it must have a method active() that returns a "
                "context manager, as mecam.virtual.MixStyle has"
            )
        self.virtual_domain = virtual_domain
        super().__init__(params, base_optimizer, {"rho": rho, "alpha": alpha, "beta": beta}, model=model, **options)

    def check(self, group: Mapping[str, Any]) -> None:
        alpha, beta = group["alpha"], group["beta"]
        if isinstance(alpha, Tensor) or isinstance(beta, Tensor):
            return
        if alpha + beta > 1:
            raise ValueError(
                f"MeCAM: alpha={alpha!r} and beta={beta!r} add up to {alpha + beta:g}; alpha + beta must be in [0, 1], "
                "or the plain gradient is ascended"
            )
        if beta > alpha:
            warnings.warn(
                f"MeCAM: beta={beta!r} > alpha={alpha!r}; the paper's condition is beta <= alpha", stacklevel=5
            )

    def gradient(self, grad_at: GradAt) -> Vector:
        rho, alpha, beta = self.values("rho", "alpha", "beta")
        g = grad_at()
        delta = rho * unit(g)
        return (1 - alpha - beta) * g + alpha * grad_at(+delta) + beta * grad_at(-delta, self.virtual_domain)

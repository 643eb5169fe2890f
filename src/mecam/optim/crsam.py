"""CR-SAM, Curvature Regularized SAM (Wu et al., 2024)."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from torch.optim.optimizer import ParamsT

from mecam.optim._base import BaseOptimizer
from mecam.optim._passes import GradAt
from mecam.optim.hyperparameters import RHO, Choice, Hyperparameter
from mecam.optim.sharpness import SharpnessAware
from mecam.optim.vector import Vector, unit


class CRSAM(SharpnessAware):
    """SAM with a penalty on the curvature along the gradient, by differences.

        g± = ∇f(θ ± ρ n(g));   g ← g₊ + γ (g₊ + g₋ − 2g) + β (g₊ − g₋)

    This is the released code's combination; its paper describes a normalised Hessian trace.
    """

    passes = 3
    hyperparameters = {
        "rho": RHO,
        "gamma": Hyperparameter("weight of the second difference", search=Choice((0.01, 0.1, 0.5))),
        "beta": Hyperparameter("weight of the first difference", search=Choice((0.01, 0.1))),
    }

    def __init__(
        self,
        params: ParamsT,
        base_optimizer: BaseOptimizer,
        *,
        rho: float | Tensor = 0.1,
        gamma: float | Tensor = 0.1,
        beta: float | Tensor = 0.1,
        model: nn.Module | None = None,
        **options: Any,
    ) -> None:
        super().__init__(params, base_optimizer, {"rho": rho, "gamma": gamma, "beta": beta}, model=model, **options)

    def gradient(self, grad_at: GradAt) -> Vector:
        rho, gamma, beta = self.values("rho", "gamma", "beta")
        g = grad_at()
        e = rho * unit(g)
        g_plus = grad_at(+e)
        g_minus = grad_at(-e)
        return g_plus + gamma * (g_plus + g_minus - 2 * g) + beta * (g_plus - g_minus)

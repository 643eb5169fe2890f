"""GSAM, Surrogate Gap Guided SAM (Zhuang et al., 2022)."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from torch.optim.optimizer import ParamsT

from mecam.optim._base import BaseOptimizer
from mecam.optim._passes import GradAt
from mecam.optim.hyperparameters import RHO, Choice, Hyperparameter
from mecam.optim.sharpness import SharpnessAware
from mecam.optim.vector import Vector, along, unit


class GSAM(SharpnessAware):
    """SAM, and descent on the surrogate gap f(θ+e) − f(θ) in the direction that leaves f(θ+e) alone.

        gₛ = ∇f(θ + ρ n(g));   g ← gₛ − α (g − part of g along gₛ)

    The original ties rho to the learning rate: RhoSchedule(optimizer, proportional_to_lr(...)).
    """

    passes = 2
    hyperparameters = {
        "rho": RHO,
        "alpha": Hyperparameter("weight of the descent on the surrogate gap", search=Choice((0.1, 0.2, 0.4))),
    }

    def __init__(
        self,
        params: ParamsT,
        base_optimizer: BaseOptimizer,
        *,
        rho: float | Tensor = 0.05,
        alpha: float | Tensor = 0.4,
        model: nn.Module | None = None,
        **options: Any,
    ) -> None:
        super().__init__(params, base_optimizer, {"rho": rho, "alpha": alpha}, model=model, **options)

    def gradient(self, grad_at: GradAt) -> Vector:
        rho, alpha = self.values("rho", "alpha")
        g = grad_at()
        g_s = grad_at(rho * unit(g))
        return g_s - alpha * (g - along(g, g_s))

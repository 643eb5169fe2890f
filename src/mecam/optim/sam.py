"""SAM, Sharpness-Aware Minimization (Foret et al., 2021)."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from torch.optim.optimizer import ParamsT

from mecam.optim._base import BaseOptimizer
from mecam.optim._passes import GradAt
from mecam.optim.hyperparameters import RHO
from mecam.optim.sharpness import SharpnessAware
from mecam.optim.vector import Vector, unit


class SAM(SharpnessAware):
    """Minimises f(θ+e), e = ρ g/‖g‖.

    g ← ∇f(θ + ρ n(∇f(θ)))
    """

    passes = 2
    hyperparameters = {
        "rho": RHO,
    }

    def __init__(
        self,
        params: ParamsT,
        base_optimizer: BaseOptimizer,
        *,
        rho: float | Tensor = 0.05,
        model: nn.Module | None = None,
        **options: Any,
    ) -> None:
        super().__init__(params, base_optimizer, {"rho": rho}, model=model, **options)

    def gradient(self, grad_at: GradAt) -> Vector:
        (rho,) = self.values("rho")
        return grad_at(rho * unit(grad_at()))

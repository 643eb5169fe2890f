"""SAGM, Sharpness-Aware Gradient Matching (Wang et al., 2023)."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from torch.optim.optimizer import ParamsT

from mecam.optim._base import BaseOptimizer
from mecam.optim._passes import GradAt
from mecam.optim.hyperparameters import RHO, Choice, Hyperparameter
from mecam.optim.sharpness import SharpnessAware
from mecam.optim.vector import Vector, unit


class SAGM(SharpnessAware):
    """Minimises f, f at the perturbed weights, and their gap, by matching the two gradients.

    g ← ½ g + ½ ∇f(θ + (ρ/‖g‖ − α) g)
    """

    passes = 2
    hyperparameters = {
        "rho": RHO,
        "alpha": Hyperparameter("step along the raw gradient against the perturbation", search=Choice((5e-4, 1e-3))),
    }

    def __init__(
        self,
        params: ParamsT,
        base_optimizer: BaseOptimizer,
        *,
        rho: float | Tensor = 0.05,
        alpha: float | Tensor = 1e-3,
        model: nn.Module | None = None,
        **options: Any,
    ) -> None:
        super().__init__(params, base_optimizer, {"rho": rho, "alpha": alpha}, model=model, **options)

    def gradient(self, grad_at: GradAt) -> Vector:
        rho, alpha = self.values("rho", "alpha")
        g = grad_at()
        return 0.5 * g + 0.5 * grad_at(rho * unit(g) - alpha * g)

"""ASAM, Adaptive SAM (Kwon et al., 2021)."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from torch.optim.optimizer import ParamsT

from mecam.optim._base import BaseOptimizer
from mecam.optim._passes import GradAt
from mecam.optim.hyperparameters import Choice, Hyperparameter
from mecam.optim.sharpness import SharpnessAware
from mecam.optim.vector import EPSILON, Vector, norm, times


class ASAM(SharpnessAware):
    """SAM in a ball scaled by the weights: e = ρ θ² g / ‖|θ| g‖, elementwise.

        g ← ∇f(θ + e)

    The original also adds 0.01 to |θ| and leaves biases unscaled; this is the widely used form without. Its rho is
    about ten times SAM's.
    """

    passes = 2
    hyperparameters = {
        "rho": Hyperparameter("radius in units of the weights", search=Choice((0.5, 1.0, 2.0))),
    }

    def __init__(
        self,
        params: ParamsT,
        base_optimizer: BaseOptimizer,
        *,
        rho: float | Tensor = 0.5,
        model: nn.Module | None = None,
        **options: Any,
    ) -> None:
        super().__init__(params, base_optimizer, {"rho": rho}, model=model, **options)

    def gradient(self, grad_at: GradAt) -> Vector:
        (rho,) = self.values("rho")
        theta = self.weights()
        e = times(theta, grad_at())
        scale = rho / (norm(e) + EPSILON)
        e = times(theta, e)
        return grad_at(scale * e)

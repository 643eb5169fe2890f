"""GSAM, Surrogate Gap Guided SAM (Zhuang et al., 2022)."""

from __future__ import annotations

from mecam.hyperparameters import Choice, Hyperparameter
from mecam.optim._options import radius
from mecam.optim._passes import GradAt
from mecam.optim._two_passes import TwoPasses
from mecam.optim.vector import Vector, along, unit


class GSAM(TwoPasses):
    """SAM, and descent on the surrogate gap f(θ+e) − f(θ) in the direction that leaves f(θ+e) alone.

        gₛ = ∇f(θ + ρ n(g));   g ← gₛ − α (g − part of g along gₛ)

    The original ties rho to the learning rate: RhoSchedule(optimizer, proportional_to_lr(...)).
    """

    hyperparameters = {
        "rho": radius(0.05),
        "alpha": Hyperparameter(
            "weight of the descent on the surrogate gap", default=0.4, search=Choice((0.1, 0.2, 0.4))
        ),
    }

    def gradient(self, grad_at: GradAt) -> Vector:
        rho, alpha = self.values("rho", "alpha")
        g = grad_at()
        g_s = grad_at(rho * unit(g))
        return g_s - alpha * (g - along(g, g_s))

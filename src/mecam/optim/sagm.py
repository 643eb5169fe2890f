"""SAGM, Sharpness-Aware Gradient Matching (Wang et al., 2023)."""

from __future__ import annotations

from mecam.hyperparameters import Choice, Hyperparameter
from mecam.optim._options import radius
from mecam.optim._passes import GradAt
from mecam.optim._two_passes import TwoPasses
from mecam.optim.vector import Vector, unit


class SAGM(TwoPasses):
    """Minimizes f, f at the perturbed weights, and their gap, by matching the two gradients.

    g ← ½ g + ½ ∇f(θ + (ρ/‖g‖ − α) g)
    """

    hyperparameters = {
        "rho": radius(0.05),
        "alpha": Hyperparameter(
            "step along the raw gradient against the perturbation", default=1e-3, search=Choice((5e-4, 1e-3))
        ),
    }

    def gradient(self, grad_at: GradAt) -> Vector:
        rho, alpha = self.values("rho", "alpha")
        g = grad_at()
        return 0.5 * g + 0.5 * grad_at(rho * unit(g) - alpha * g)

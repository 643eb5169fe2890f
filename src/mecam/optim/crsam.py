"""CR-SAM, Curvature Regularized SAM (Wu et al., 2024)."""

from __future__ import annotations

from mecam.hyperparameters import Choice, Hyperparameter
from mecam.optim._options import radius
from mecam.optim._passes import GradAt
from mecam.optim.sharpness import SharpnessAware
from mecam.optim.vector import Vector, unit


class CRSAM(SharpnessAware):
    """SAM with a penalty on the curvature along the gradient, by differences.

        g± = ∇f(θ ± ρ n(g));   g ← g₊ + γ (g₊ + g₋ − 2g) + β (g₊ − g₋)

    This is the released code's combination; its paper describes a normalized Hessian trace.
    """

    passes = 3
    side_by_side = True
    hyperparameters = {
        "rho": radius(0.1),
        "gamma": Hyperparameter("weight of the second difference", default=0.1, search=Choice((0.01, 0.1, 0.5))),
        "beta": Hyperparameter("weight of the first difference", default=0.1, search=Choice((0.01, 0.1))),
    }

    def gradient(self, grad_at: GradAt) -> Vector:
        rho, gamma, beta = self.values("rho", "gamma", "beta")
        g = grad_at()
        e = rho * unit(g)
        g_plus = grad_at(+e)
        g_minus = grad_at(-e)
        return g_plus + gamma * (g_plus + g_minus - 2 * g) + beta * (g_plus - g_minus)

"""FAD, Flatness-Aware minimization for Domain generalization (Zhang et al., 2023)."""

from __future__ import annotations

from mecam.hyperparameters import Choice, Hyperparameter
from mecam.optim._options import radius
from mecam.optim._passes import GradAt
from mecam.optim.sharpness import SharpnessAware
from mecam.optim.vector import Vector, unit


class FAD(SharpnessAware):
    """Minimizes f + α (β R₀ + (1−β) R₁): the largest rise of the loss, and of the gradient norm, in a ball of radius ρ.

        g₀ = ∇f(θ);  g₁ = ∇f(θ + ρ n(g₀));  θ₂ = θ + ρ n(g₁ − g₀);  g₂ = ∇f(θ₂);  g₃ = ∇f(θ₂ + ρ n(g₂))
        g ← g₀ + α (β (g₁ − g₀) + (1−β) (g₃ − g₂))

    No code was published: this is derived from the two definitions, with ∇R₁ ≈ ρ H n(g) taken as a difference.
    """

    passes = 4
    hyperparameters = {
        "rho": radius(0.05),
        "alpha": Hyperparameter("weight of both flatness terms", default=0.5, high=1, search=Choice((0.1, 0.5, 1.0))),
        "beta": Hyperparameter("share of the zeroth-order term", default=0.5, high=1, search=Choice((0.25, 0.5, 0.75))),
    }

    def gradient(self, grad_at: GradAt) -> Vector:
        rho, alpha, beta = self.values("rho", "alpha", "beta")
        g0 = grad_at()
        g1 = grad_at(rho * unit(g0))
        away = rho * unit(g1 - g0)
        g2 = grad_at(away)
        g3 = grad_at(away + rho * unit(g2))
        return g0 + alpha * (beta * (g1 - g0) + (1 - beta) * (g3 - g2))

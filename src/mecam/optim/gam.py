"""GAM, Gradient norm Aware Minimization (Zhang et al., 2023)."""

from __future__ import annotations

from mecam.hyperparameters import Choice, Hyperparameter
from mecam.optim._passes import GradAt
from mecam.optim.sharpness import SharpnessAware
from mecam.optim.vector import Vector, along, unit


class GAM(SharpnessAware):
    """Flatness of first order: penalizes the largest gradient norm in a ball, in its four-pass form.

        g₀ = ∇f(θ);  g₁ = ∇f(θ + ρ n(g₀));  θ₂ = θ + r n(g₁ − g₀);  g₂ = ∇f(θ₂);  g₃ = ∇f(θ₂ + ρ n(g₂))
        h⁺ = α g₁ + (1−α) g₃;  h⁻ = β g₀ + (1−β) g₂;  g ← h⁺ − γ (h⁻ − part of h⁻ along h⁺)

    The algorithm as its paper states it; the published code gives g₀ the weight 1 in h⁻ instead of β. r is `rho_norm`.
    """

    passes = 4
    hyperparameters = {
        "rho": Hyperparameter(
            "radius of the step that measures the gradient norm", default=0.02, search=Choice((0.02, 0.03, 0.04))
        ),
        "rho_norm": Hyperparameter(
            "radius of the ball in which the gradient norm is maximized", default=0.2, search=Choice((0.1, 0.2))
        ),
        "alpha": Hyperparameter("weight of g₁ against g₃", default=0.6, high=1, search=Choice((0.1, 0.5, 0.6))),
        "beta": Hyperparameter("weight of g₀ against g₂", default=0.5, high=1, search=Choice((0.1, 0.3, 0.5))),
        "gamma": Hyperparameter("weight of the orthogonal part", default=0.03, search=Choice((0.03, 0.05))),
    }

    def gradient(self, grad_at: GradAt) -> Vector:
        rho, rho_norm, alpha, beta, gamma = self.values("rho", "rho_norm", "alpha", "beta", "gamma")
        g0 = grad_at()
        g1 = grad_at(rho * unit(g0))
        away = rho_norm * unit(g1 - g0)
        g2 = grad_at(away)
        g3 = grad_at(away + rho * unit(g2))
        plus = alpha * g1 + (1 - alpha) * g3
        minus = beta * g0 + (1 - beta) * g2
        return plus - gamma * (minus - along(minus, plus))

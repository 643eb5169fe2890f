"""MeCAM, Meta Curvature-Aware Minimization."""

from __future__ import annotations

from mecam.optim._meta import ALPHA, BETA, RADIUS, Meta
from mecam.optim._passes import GradAt
from mecam.optim.vector import Vector, unit


class MeCAM(Meta):
    """Minimizes f(θ) + α (f(θ+δ) − f(θ)) + β (m(θ−δ) − f(θ)), δ = ρ ∇f(θ)/‖∇f(θ)‖ held constant.

        g ← (1 − α − β) ∇f(θ) + α ∇f(θ+δ) + β ∇m(θ−δ)

    m is f on a virtual unseen domain: `virtual_domain`, an object with `active()` such as mecam.virtual.MixStyle, is on
    in that pass alone. Without one m is f. Three passes.

    Args:
        virtual_domain: an object with `active()`, such as mecam.virtual.MixStyle, that is on in the meta pass alone.
    """

    passes = 3
    side_by_side = True
    hyperparameters = {"rho": RADIUS, "alpha": ALPHA, "beta": BETA}

    def gradient(self, grad_at: GradAt) -> Vector:
        rho, alpha, beta = self.values("rho", "alpha", "beta")
        g = grad_at()
        delta = rho * unit(g)
        return (1 - alpha - beta) * g + alpha * grad_at(+delta) + beta * grad_at(-delta, self.virtual_domain)

"""WSAM, Weighted SAM (Yue et al., 2023)."""

from __future__ import annotations

from mecam.hyperparameters import Choice, Hyperparameter
from mecam.optim._options import radius
from mecam.optim._passes import GradAt
from mecam.optim._two_passes import TwoPasses
from mecam.optim.vector import Vector, unit


class WSAM(TwoPasses):
    """Sharpness as a regularizer with a weight w = γ/(1−γ).

        gₛ = ∇f(θ + ρ n(g))
        coupled:    g ← w gₛ + (1−w) g
        decoupled:  g, and after the base optimizer's step θ ← θ − lr·w·(gₛ − g)

    `clip_norm` bounds what the base optimizer gets, not the decoupled move.

    Args:
        decouple: move the weights by the sharpness term after the base optimizer's step, not through it.
    """

    decouple: bool
    options = {"decouple": True}
    hyperparameters = {
        "rho": radius(0.05),
        "gamma": Hyperparameter(
            "weight of the sharpness; 0.5 is SAM", default=0.9, high=1, open_high=True, search=Choice((0.5, 0.8, 0.9))
        ),
    }

    def gradient(self, grad_at: GradAt) -> Vector:
        rho, gamma, lr = self.values("rho", "gamma", "lr")
        w = gamma / (1 - gamma)
        g = grad_at()
        g_s = grad_at(rho * unit(g))
        if not self.decouple:
            return w * g_s + (1 - w) * g
        self.shift(-lr * w * (g_s - g))
        return g

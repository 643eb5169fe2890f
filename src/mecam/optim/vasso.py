"""VaSSO, Variance-Suppressed Sharpness-aware Optimization (Li and Giannakis, 2023)."""

from __future__ import annotations

from mecam.hyperparameters import Choice, Hyperparameter
from mecam.optim._options import radius
from mecam.optim._passes import GradAt
from mecam.optim._two_passes import TwoPasses
from mecam.optim.vector import Vector, unit


class VaSSO(TwoPasses):
    """SAM perturbed along a running mean d of the gradients, which varies less than the batch's gradient.

        d ← (1−ϑ) d + ϑ g;   g ← ∇f(θ + ρ n(d))

    In the first step d = g. A parameter that joins later starts with d = 0; one without a gradient in some step is not
    perturbed in it, and keeps its d. With theta = 1 this is SAM.
    """

    keeps = ("d",)
    hyperparameters = {
        "rho": radius(0.05),
        "theta": Hyperparameter(
            "weight of the newest gradient in the running mean", default=0.9, high=1, search=Choice((0.2, 0.4, 0.9))
        ),
    }

    def gradient(self, grad_at: GradAt) -> Vector:
        rho, theta = self.values("rho", "theta")
        d, kept = grad_at(), self.kept("d")
        if kept is not None:
            d = (1 - theta) * kept.within(d) + theta * d
        self.keep("d", d)
        return grad_at(rho * unit(d))

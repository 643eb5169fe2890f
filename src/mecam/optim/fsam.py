"""F-SAM, Friendly SAM (Li et al., 2024)."""

from __future__ import annotations

from mecam.hyperparameters import Choice, Hyperparameter
from mecam.optim._options import radius
from mecam.optim._passes import GradAt
from mecam.optim._two_passes import TwoPasses
from mecam.optim.vector import Vector, unit


class FSAM(TwoPasses):
    """SAM perturbed along the batch's own part of the gradient: what is left without its running mean m.

        q = g − σ m;   m ← λ m + (1−λ) g;   g ← ∇f(θ + ρ n(q))

    In the first step q = m = g. A parameter that joins later starts with m = 0; one without a gradient in some step is
    not perturbed in it, and keeps its m.
    """

    keeps = ("m",)
    hyperparameters = {
        "rho": radius(0.05),
        "sigma": Hyperparameter("how much of the running mean is taken out", default=1.0, search=Choice((0.5, 1.0))),
        "lam": Hyperparameter("decay of the running mean", default=0.9, high=1, search=Choice((0.6, 0.9, 0.95))),
    }

    def gradient(self, grad_at: GradAt) -> Vector:
        rho, sigma, lam = self.values("rho", "sigma", "lam")
        g = grad_at()
        m = self.kept("m")
        if m is None:
            self.keep("m", g)
            return grad_at(rho * unit(g))
        m = m.within(g)
        self.keep("m", lam * m + (1 - lam) * g)
        return grad_at(rho * unit(g - sigma * m))

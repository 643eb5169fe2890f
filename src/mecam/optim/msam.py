"""MSAM, Momentum-SAM (Becker et al., 2024): sharpness-aware steps at the cost of plain ones."""

from __future__ import annotations

from mecam.hyperparameters import Choice, Hyperparameter
from mecam.optim._options import radius
from mecam.optim._passes import GradAt
from mecam.optim.sharpness import SharpnessAware
from mecam.optim.vector import Vector, unit


class MSAM(SharpnessAware):
    """Take the gradient ahead along a running sum v of the gradients, in place of a second pass.

        g ← ∇f(θ − ρ v/‖v‖);   v ← μ v + g

    One pass, at perturbed weights from the second step on: `step` returns the loss there, batch-norm statistics are
    those of that pass, and `first_pass` is True in it. A parameter without a gradient in some step keeps its v.
    """

    passes = 1
    keeps = ("v",)
    hyperparameters = {
        "rho": radius(0.05),
        "mu": Hyperparameter("decay of the running sum", default=0.9, high=1, search=Choice((0.8, 0.9, 0.95))),
    }

    def gradient(self, grad_at: GradAt) -> Vector:
        rho, mu = self.values("rho", "mu")
        v = self.kept("v")
        if v is None:
            g = grad_at()
            self.keep("v", g)
            return g
        g = grad_at(-rho * unit(v))
        self.keep("v", mu * v.within(g) + g)
        return g

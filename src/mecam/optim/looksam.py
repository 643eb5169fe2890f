"""LookSAM (Liu et al., 2022)."""

from __future__ import annotations

from collections.abc import Hashable

from mecam.hyperparameters import Choice, Hyperparameter
from mecam.optim._options import radius
from mecam.optim._passes import GradAt
from mecam.optim.sharpness import SharpnessAware
from mecam.optim.vector import Vector, along, norm, ratio, unit


class LookSAM(SharpnessAware):
    """SAM every k-th step; between, the part of SAM's gradient across g is remembered and added.

        t mod k = 0:  g ← gₛ = ∇f(θ + ρ n(g)),  v = gₛ − part of gₛ along g
        otherwise:    g ← g + α (‖g‖/‖v‖) v

    A parameter without a gradient in some step does not move in it. Two passes in one step of k, one in the others. The
    host counts the steps that were taken, and decides before each: where the device may leave one out
    (nonfinite="skip"), it waits for that.
    """

    keeps = ("v",)
    varies = True
    hyperparameters = {
        "rho": radius(0.1),
        "alpha": Hyperparameter("weight of the remembered part", default=0.7, search=Choice((0.5, 0.7, 1.0))),
        "k": Hyperparameter(
            "steps from one look to the next", default=10, low=1, integer=True, shared=True, search=Choice((2, 5, 10))
        ),
    }

    def is_due(self) -> bool:
        return super().is_due() and (self.kept("v") is None or int(self.first("taken")) % self.first("k") == 0)

    def plan(self) -> Hashable:
        due = super().plan()
        return due if due or self.kept("v") is not None else "before start"  # nothing is added yet

    def gradient(self, grad_at: GradAt) -> Vector:
        (rho,) = self.values("rho")
        g = grad_at()
        g_s = grad_at(rho * unit(g))
        self.keep("v", g_s - along(g_s, g))
        return g_s

    def plain(self, grad_at: GradAt) -> Vector:
        (alpha,) = self.values("alpha")
        g, kept = grad_at(), self.kept("v")
        if kept is None:  # before `start`
            return g
        v = kept.within(g)
        return g + alpha * ratio(norm(g), norm(v)) * v

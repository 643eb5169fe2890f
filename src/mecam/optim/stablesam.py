"""StableSAM, also called SSAM (Tan et al., 2024): SAM with a renormalized gradient."""

from __future__ import annotations

from mecam.optim._options import radius
from mecam.optim._passes import GradAt
from mecam.optim._two_passes import TwoPasses
from mecam.optim.vector import Vector, norm, ratio, unit


class StableSAM(TwoPasses):
    """SAM whose gradient has the length of the plain one.

        gₛ = ∇f(θ + ρ n(g));   g ← (‖g‖/‖gₛ‖) gₛ

    SAM's gradient is longer than the plain one where the loss is curved, so SAM needs smaller learning rates.
    """

    hyperparameters = {"rho": radius(0.05)}

    def gradient(self, grad_at: GradAt) -> Vector:
        (rho,) = self.values("rho")
        g = grad_at()
        length, e = norm(g), rho * unit(g)
        g_s = grad_at(e)
        return ratio(length, norm(g_s)) * g_s

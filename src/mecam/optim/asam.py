"""ASAM, Adaptive SAM (Kwon et al., 2021)."""

from __future__ import annotations

from mecam.hyperparameters import Choice, Hyperparameter
from mecam.optim._passes import GradAt
from mecam.optim._two_passes import TwoPasses
from mecam.optim.vector import EPSILON, Coefficient, Vector, norm, times


class ASAM(TwoPasses):
    """SAM in a ball scaled by the weights: e = ρ θ² g / ‖|θ| g‖, elementwise.

        g ← ∇f(θ + e)

    The original also adds 0.01 to |θ| and leaves biases unscaled; this is the widely used form without. Its rho is
    about ten times SAM's.
    """

    hyperparameters = {
        "rho": Hyperparameter("radius in units of the weights", default=0.5, search=Choice((0.5, 1.0, 2.0))),
    }

    def gradient(self, grad_at: GradAt) -> Vector:
        (rho,) = self.values("rho")
        return grad_at(adaptive_ascent(rho, self.weights(), grad_at()))


def adaptive_ascent(rho: Coefficient, theta: Vector, g: Vector) -> Vector:
    """ρ θ² g / ‖|θ| g‖"""
    e = times(theta, g)
    scale = rho / (norm(e) + EPSILON)
    return scale * times(theta, e)

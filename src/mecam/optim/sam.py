"""SAM, Sharpness-Aware Minimization (Foret et al., 2021)."""

from __future__ import annotations

from typing import Any

from mecam.optim._options import radius
from mecam.optim._passes import GradAt
from mecam.optim._two_passes import TwoPasses
from mecam.optim.asam import adaptive_ascent
from mecam.optim.vector import Vector, unit


class SAM(TwoPasses):
    """Minimizes f(θ+e), e = ρ g/‖g‖; with `adaptive`, ASAM's e = ρ θ² g / ‖|θ| g‖.

        g ← ∇f(θ + e)

    Args:
        adaptive: scale the ball by the weights, as ASAM does.
    """

    adaptive: bool
    options = {"adaptive": False}
    hyperparameters = {"rho": radius(0.05)}

    def gradient(self, grad_at: GradAt) -> Vector:
        (rho,) = self.values("rho")
        if self.adaptive:
            return grad_at(adaptive_ascent(rho, self.weights(), grad_at()))
        return grad_at(rho * unit(grad_at()))

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        for group in state_dict["param_groups"]:
            if group.get("adaptive", self.adaptive) != self.adaptive:  # as davda54/sam and pytorch_optimizer save it
                raise ValueError(
                    f"the state is of adaptive={group['adaptive']}; create SAM with this option to load it"
                )
        super().load_state_dict(state_dict)

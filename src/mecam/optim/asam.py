"""ASAM, Adaptive SAM (Kwon et al., 2021)."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from torch.optim.optimizer import ParamsT

from mecam.optim._base import BaseOptimizer
from mecam.optim._options import Nonfinite
from mecam.optim._passes import GradAt
from mecam.optim._two_passes import TwoPasses
from mecam.optim.hyperparameters import Choice, Hyperparameter
from mecam.optim.vector import EPSILON, Coefficient, Vector, norm, times


class ASAM(TwoPasses):
    """SAM in a ball scaled by the weights: e = ρ θ² g / ‖|θ| g‖, elementwise.

        g ← ∇f(θ + e)

    The original also adds 0.01 to |θ| and leaves biases unscaled; this is the widely used form without. Its rho is
    about ten times SAM's.

    Args:
        params: parameters or parameter groups, which may carry their own rho.
        base_optimizer: a class such as torch.optim.Adam, or a function of the parameters that returns an optimizer.
        rho: radius in units of the weights.
        model: the network, whose buffers and frozen parameters then change as in one plain pass.
        shared_noise: draw the same random numbers in every pass.
        clip_norm: largest norm of the combined gradient.
        nonfinite: "raise" an error at a NaN or infinite gradient, "skip" the step, or "ignore" it.
        local_perturbation: under DDP, perturb each rank by its own gradient.
        track: fill `last` with the losses, gradient norms and cosines of the passes.
        base_kwargs: options of the base optimizer (lr, weight_decay, ...).

    Example:
        optimizer = ASAM(model.parameters(), torch.optim.Adam, lr=1e-3, model=model)

        def closure():
            optimizer.zero_grad()
            loss = loss_function(model(inputs), targets)
            loss.backward()
            return loss

        loss = optimizer.step(closure)
    """

    passes = 2
    hyperparameters = {
        "rho": Hyperparameter("radius in units of the weights", search=Choice((0.5, 1.0, 2.0))),
    }

    def __init__(
        self,
        params: ParamsT,
        base_optimizer: BaseOptimizer,
        rho: float | Tensor = 0.5,
        *,
        model: nn.Module | None = None,
        shared_noise: bool = False,
        clip_norm: float | None = None,
        nonfinite: Nonfinite = "raise",
        local_perturbation: bool = False,
        track: bool = False,
        **base_kwargs: Any,
    ) -> None:
        super().__init__(
            params,
            base_optimizer,
            {"rho": rho},
            model=model,
            shared_noise=shared_noise,
            clip_norm=clip_norm,
            nonfinite=nonfinite,
            local_perturbation=local_perturbation,
            track=track,
            **base_kwargs,
        )

    def gradient(self, grad_at: GradAt) -> Vector:
        (rho,) = self.values("rho")
        return grad_at(adaptive_ascent(rho, self.weights(), grad_at()))


def adaptive_ascent(rho: Coefficient, theta: Vector, g: Vector) -> Vector:
    """ρ θ² g / ‖|θ| g‖"""
    e = times(theta, g)
    scale = rho / (norm(e) + EPSILON)
    return scale * times(theta, e)

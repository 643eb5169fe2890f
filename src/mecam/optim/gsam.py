"""GSAM, Surrogate Gap Guided SAM (Zhuang et al., 2022)."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from torch.optim.optimizer import ParamsT

from mecam.optim._base import BaseOptimizer
from mecam.optim._options import Nonfinite
from mecam.optim._passes import GradAt
from mecam.optim._two_passes import TwoPasses
from mecam.optim.hyperparameters import RHO, Choice, Hyperparameter
from mecam.optim.vector import Vector, along, unit


class GSAM(TwoPasses):
    """SAM, and descent on the surrogate gap f(θ+e) − f(θ) in the direction that leaves f(θ+e) alone.

        gₛ = ∇f(θ + ρ n(g));   g ← gₛ − α (g − part of g along gₛ)

    The original ties rho to the learning rate: RhoSchedule(optimizer, proportional_to_lr(...)).

    Args:
        params: parameters or parameter groups, which may carry their own rho, alpha.
        base_optimizer: a class such as torch.optim.Adam, or a function of the parameters that returns an optimizer.
        rho: radius of the perturbation.
        alpha: weight of the descent on the surrogate gap.
        model: the network, whose buffers and frozen parameters then change as in one plain pass.
        shared_noise: draw the same random numbers in every pass.
        clip_norm: largest norm of the combined gradient.
        nonfinite: "raise" an error at a NaN or infinite gradient, "skip" the step, or "ignore" it.
        local_perturbation: under DDP, perturb each rank by its own gradient.
        track: fill `last` with the losses, gradient norms and cosines of the passes.
        base_kwargs: options of the base optimizer (lr, weight_decay, ...).

    Example:
        optimizer = GSAM(model.parameters(), torch.optim.Adam, lr=1e-3, model=model)

        def closure():
            optimizer.zero_grad()
            loss = loss_function(model(inputs), targets)
            loss.backward()
            return loss

        loss = optimizer.step(closure)
    """

    passes = 2
    hyperparameters = {
        "rho": RHO,
        "alpha": Hyperparameter("weight of the descent on the surrogate gap", search=Choice((0.1, 0.2, 0.4))),
    }

    def __init__(
        self,
        params: ParamsT,
        base_optimizer: BaseOptimizer,
        rho: float | Tensor = 0.05,
        *,
        alpha: float | Tensor = 0.4,
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
            {"rho": rho, "alpha": alpha},
            model=model,
            shared_noise=shared_noise,
            clip_norm=clip_norm,
            nonfinite=nonfinite,
            local_perturbation=local_perturbation,
            track=track,
            **base_kwargs,
        )

    def gradient(self, grad_at: GradAt) -> Vector:
        rho, alpha = self.values("rho", "alpha")
        g = grad_at()
        g_s = grad_at(rho * unit(g))
        return g_s - alpha * (g - along(g, g_s))

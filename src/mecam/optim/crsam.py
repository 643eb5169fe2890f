"""CR-SAM, Curvature Regularized SAM (Wu et al., 2024)."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from torch.optim.optimizer import ParamsT

from mecam.optim._base import BaseOptimizer
from mecam.optim._options import Nonfinite
from mecam.optim._passes import GradAt
from mecam.optim.hyperparameters import RHO, Choice, Hyperparameter
from mecam.optim.sharpness import SharpnessAware
from mecam.optim.vector import Vector, unit


class CRSAM(SharpnessAware):
    """SAM with a penalty on the curvature along the gradient, by differences.

        g± = ∇f(θ ± ρ n(g));   g ← g₊ + γ (g₊ + g₋ − 2g) + β (g₊ − g₋)

    This is the released code's combination; its paper describes a normalised Hessian trace.

    Args:
        params: parameters or parameter groups, which may carry their own rho, gamma, ....
        base_optimizer: a class such as torch.optim.Adam, or a function of the parameters that returns an optimizer.
        rho: radius of the perturbation.
        gamma: weight of the second difference.
        beta: weight of the first difference.
        model: the network, whose buffers and frozen parameters then change as in one plain pass.
        shared_noise: draw the same random numbers in every pass.
        clip_norm: largest norm of the combined gradient.
        nonfinite: "raise" an error at a NaN or infinite gradient, "skip" the step, or "ignore" it.
        local_perturbation: under DDP, perturb each rank by its own gradient.
        track: fill `last` with the losses, gradient norms and cosines of the passes.
        base_kwargs: options of the base optimizer (lr, weight_decay, ...).

    Example:
        optimizer = CRSAM(model.parameters(), torch.optim.Adam, lr=1e-3, model=model)

        def closure():
            optimizer.zero_grad()
            loss = loss_function(model(inputs), targets)
            loss.backward()
            return loss

        loss = optimizer.step(closure)
    """

    passes = 3
    hyperparameters = {
        "rho": RHO,
        "gamma": Hyperparameter("weight of the second difference", search=Choice((0.01, 0.1, 0.5))),
        "beta": Hyperparameter("weight of the first difference", search=Choice((0.01, 0.1))),
    }

    def __init__(
        self,
        params: ParamsT,
        base_optimizer: BaseOptimizer,
        rho: float | Tensor = 0.1,
        *,
        gamma: float | Tensor = 0.1,
        beta: float | Tensor = 0.1,
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
            {"rho": rho, "gamma": gamma, "beta": beta},
            model=model,
            shared_noise=shared_noise,
            clip_norm=clip_norm,
            nonfinite=nonfinite,
            local_perturbation=local_perturbation,
            track=track,
            **base_kwargs,
        )

    def gradient(self, grad_at: GradAt) -> Vector:
        rho, gamma, beta = self.values("rho", "gamma", "beta")
        g = grad_at()
        e = rho * unit(g)
        g_plus = grad_at(+e)
        g_minus = grad_at(-e)
        return g_plus + gamma * (g_plus + g_minus - 2 * g) + beta * (g_plus - g_minus)

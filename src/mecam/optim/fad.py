"""FAD, Flatness-Aware minimization for Domain generalization (Zhang et al., 2023)."""

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


class FAD(SharpnessAware):
    """Minimises f + α (β R₀ + (1−β) R₁): the largest rise of the loss, and of the gradient norm, in a ball of radius ρ.

        g₀ = ∇f(θ);  g₁ = ∇f(θ + ρ n(g₀));  θ₂ = θ + ρ n(g₁ − g₀);  g₂ = ∇f(θ₂);  g₃ = ∇f(θ₂ + ρ n(g₂))
        g ← g₀ + α (β (g₁ − g₀) + (1−β) (g₃ − g₂))

    No code was published: this is derived from the two definitions, with ∇R₁ ≈ ρ H n(g) taken as a difference.

    Args:
        params: parameters or parameter groups, which may carry their own rho, alpha, ....
        base_optimizer: a class such as torch.optim.Adam, or a function of the parameters that returns an optimizer.
        rho: radius of the perturbation.
        alpha: weight of both flatness terms.
        beta: share of the zeroth-order term.
        model: the network, whose buffers and frozen parameters then change as in one plain pass.
        shared_noise: draw the same random numbers in every pass.
        clip_norm: largest norm of the combined gradient.
        nonfinite: "raise" an error at a NaN or infinite gradient, "skip" the step, or "ignore" it.
        local_perturbation: under DDP, perturb each rank by its own gradient.
        track: fill `last` with the losses, gradient norms and cosines of the passes.
        base_kwargs: options of the base optimizer (lr, weight_decay, ...).

    Example:
        optimizer = FAD(model.parameters(), torch.optim.Adam, lr=1e-3, model=model)

        def closure():
            optimizer.zero_grad()
            loss = loss_function(model(inputs), targets)
            loss.backward()
            return loss

        loss = optimizer.step(closure)
    """

    passes = 4
    hyperparameters = {
        "rho": RHO,
        "alpha": Hyperparameter("weight of both flatness terms", high=1, search=Choice((0.1, 0.5, 1.0))),
        "beta": Hyperparameter("share of the zeroth-order term", high=1, search=Choice((0.25, 0.5, 0.75))),
    }

    def __init__(
        self,
        params: ParamsT,
        base_optimizer: BaseOptimizer,
        rho: float | Tensor = 0.05,
        *,
        alpha: float | Tensor = 0.5,
        beta: float | Tensor = 0.5,
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
            {"rho": rho, "alpha": alpha, "beta": beta},
            model=model,
            shared_noise=shared_noise,
            clip_norm=clip_norm,
            nonfinite=nonfinite,
            local_perturbation=local_perturbation,
            track=track,
            **base_kwargs,
        )

    def gradient(self, grad_at: GradAt) -> Vector:
        rho, alpha, beta = self.values("rho", "alpha", "beta")
        g0 = grad_at()
        g1 = grad_at(rho * unit(g0))
        away = rho * unit(g1 - g0)
        g2 = grad_at(away)
        g3 = grad_at(away + rho * unit(g2))
        return g0 + alpha * (beta * (g1 - g0) + (1 - beta) * (g3 - g2))

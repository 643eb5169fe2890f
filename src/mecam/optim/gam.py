"""GAM, Gradient norm Aware Minimization (Zhang et al., 2023)."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from torch.optim.optimizer import ParamsT

from mecam.optim._base import BaseOptimizer
from mecam.optim._options import Nonfinite
from mecam.optim._passes import GradAt
from mecam.optim.hyperparameters import Choice, Hyperparameter
from mecam.optim.sharpness import SharpnessAware
from mecam.optim.vector import Vector, along, unit


class GAM(SharpnessAware):
    """Flatness of first order: penalises the largest gradient norm in a ball, in its four-pass form.

        g₀ = ∇f(θ);  g₁ = ∇f(θ + ρ n(g₀));  θ₂ = θ + r n(g₁ − g₀);  g₂ = ∇f(θ₂);  g₃ = ∇f(θ₂ + ρ n(g₂))
        h⁺ = α g₁ + (1−α) g₃;  h⁻ = β g₀ + (1−β) g₂;  g ← h⁺ − γ (h⁻ − part of h⁻ along h⁺)

    The algorithm as its paper states it; the published code gives g₀ the weight 1 in h⁻ instead of β. r is `rho_norm`.

    Args:
        params: parameters or parameter groups, which may carry their own rho, rho_norm, ....
        base_optimizer: a class such as torch.optim.Adam, or a function of the parameters that returns an optimizer.
        rho: radius of the step that measures the gradient norm.
        rho_norm: radius of the ball in which the gradient norm is maximised.
        alpha: weight of g₁ against g₃.
        beta: weight of g₀ against g₂.
        gamma: weight of the orthogonal part.
        model: the network, whose buffers and frozen parameters then change as in one plain pass.
        shared_noise: draw the same random numbers in every pass.
        clip_norm: largest norm of the combined gradient.
        nonfinite: "raise" an error at a NaN or infinite gradient, "skip" the step, or "ignore" it.
        local_perturbation: under DDP, perturb each rank by its own gradient.
        track: fill `last` with the losses, gradient norms and cosines of the passes.
        base_kwargs: options of the base optimizer (lr, weight_decay, ...).

    Example:
        optimizer = GAM(model.parameters(), torch.optim.Adam, lr=1e-3, model=model)

        def closure():
            optimizer.zero_grad()
            loss = loss_function(model(inputs), targets)
            loss.backward()
            return loss

        loss = optimizer.step(closure)
    """

    passes = 4
    hyperparameters = {
        "rho": Hyperparameter("radius of the step that measures the gradient norm", search=Choice((0.02, 0.03, 0.04))),
        "rho_norm": Hyperparameter(
            "radius of the ball in which the gradient norm is maximised", search=Choice((0.1, 0.2))
        ),
        "alpha": Hyperparameter("weight of g₁ against g₃", high=1, search=Choice((0.1, 0.5, 0.6))),
        "beta": Hyperparameter("weight of g₀ against g₂", high=1, search=Choice((0.1, 0.3, 0.5))),
        "gamma": Hyperparameter("weight of the orthogonal part", search=Choice((0.03, 0.05))),
    }

    def __init__(
        self,
        params: ParamsT,
        base_optimizer: BaseOptimizer,
        rho: float | Tensor = 0.02,
        *,
        rho_norm: float | Tensor = 0.2,
        alpha: float | Tensor = 0.6,
        beta: float | Tensor = 0.5,
        gamma: float | Tensor = 0.03,
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
            {"rho": rho, "rho_norm": rho_norm, "alpha": alpha, "beta": beta, "gamma": gamma},
            model=model,
            shared_noise=shared_noise,
            clip_norm=clip_norm,
            nonfinite=nonfinite,
            local_perturbation=local_perturbation,
            track=track,
            **base_kwargs,
        )

    def gradient(self, grad_at: GradAt) -> Vector:
        rho, rho_norm, alpha, beta, gamma = self.values("rho", "rho_norm", "alpha", "beta", "gamma")
        g0 = grad_at()
        g1 = grad_at(rho * unit(g0))
        away = rho_norm * unit(g1 - g0)
        g2 = grad_at(away)
        g3 = grad_at(away + rho * unit(g2))
        plus = alpha * g1 + (1 - alpha) * g3
        minus = beta * g0 + (1 - beta) * g2
        return plus - gamma * (minus - along(minus, plus))

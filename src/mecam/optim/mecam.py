"""MeCAM, Meta Curvature-Aware Minimization."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn
from torch.optim.optimizer import ParamsT

from mecam.optim._base import BaseOptimizer
from mecam.optim._meta import ALPHA, BETA, RADIUS, Meta, check_weights
from mecam.optim._options import Nonfinite
from mecam.optim._passes import GradAt, VirtualDomain
from mecam.optim.vector import Vector, unit


class MeCAM(Meta):
    """Minimises f(θ) + α (f(θ+δ) − f(θ)) + β (m(θ−δ) − f(θ)), δ = ρ ∇f(θ)/‖∇f(θ)‖ held constant.

        g ← (1 − α − β) ∇f(θ) + α ∇f(θ+δ) + β ∇m(θ−δ)

    m is f on a virtual unseen domain: `virtual_domain`, an object with `active()` such as mecam.virtual.MixStyle, is on
    in that pass alone. Without one m is f. Three passes.

    Args:
        params: parameters or parameter groups, which may carry their own rho, alpha, ....
        base_optimizer: a class such as torch.optim.Adam, or a function of the parameters that returns an optimizer.
        rho: radius of the perturbation.
        alpha: weight of the gap f(θ+δ) − f(θ).
        beta: weight of the gap m(θ−δ) − f(θ); the paper asks for beta ≤ alpha.
        virtual_domain: an object with `active()`, such as mecam.virtual.MixStyle, that is on in the meta pass alone.
        model: the network, whose buffers and frozen parameters then change as in one plain pass.
        shared_noise: draw the same random numbers in every pass.
        clip_norm: largest norm of the combined gradient.
        nonfinite: "raise" an error at a NaN or infinite gradient, "skip" the step, or "ignore" it.
        local_perturbation: under DDP, perturb each rank by its own gradient.
        track: fill `last` with the losses, gradient norms and cosines of the passes.
        base_kwargs: options of the base optimizer (lr, weight_decay, ...).

    Example:
        optimizer = MeCAM(model.parameters(), torch.optim.Adam, lr=1e-3, model=model)

        def closure():
            optimizer.zero_grad()
            loss = loss_function(model(inputs), targets)
            loss.backward()
            return loss

        loss = optimizer.step(closure)
    """

    passes = 3
    hyperparameters = {
        "rho": RADIUS,
        "alpha": ALPHA,
        "beta": BETA,
    }

    def __init__(
        self,
        params: ParamsT,
        base_optimizer: BaseOptimizer,
        rho: float | Tensor = 0.1,
        *,
        alpha: float | Tensor = 0.1,
        beta: float | Tensor = 0.1,
        virtual_domain: VirtualDomain | None = None,
        model: nn.Module | None = None,
        shared_noise: bool = False,
        clip_norm: float | None = None,
        nonfinite: Nonfinite = "raise",
        local_perturbation: bool = False,
        track: bool = False,
        **base_kwargs: Any,
    ) -> None:
        values = {"rho": rho, "alpha": alpha, "beta": beta}
        super().__init__(
            params,
            base_optimizer,
            values,
            virtual_domain=virtual_domain,
            model=model,
            shared_noise=shared_noise,
            clip_norm=clip_norm,
            nonfinite=nonfinite,
            local_perturbation=local_perturbation,
            track=track,
            **base_kwargs,
        )

    def check(self, group: Mapping[str, Any]) -> None:
        check_weights(type(self).__name__, group["alpha"], group["beta"])

    def gradient(self, grad_at: GradAt) -> Vector:
        rho, alpha, beta = self.values("rho", "alpha", "beta")
        g = grad_at()
        delta = rho * unit(g)
        return (1 - alpha - beta) * g + alpha * grad_at(+delta) + beta * grad_at(-delta, self.virtual_domain)

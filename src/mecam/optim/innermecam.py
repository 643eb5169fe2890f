"""MeCAM with an inner step of MLDG in place of −δ in its meta pass (experimental)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn
from torch.optim.optimizer import ParamsT

from mecam.optim._base import BaseOptimizer
from mecam.optim._meta import ALPHA, BETA, RADIUS, Meta, check_weights
from mecam.optim._options import Nonfinite
from mecam.optim._passes import GradAt, VirtualDomain
from mecam.optim.hyperparameters import Choice, Hyperparameter
from mecam.optim.vector import Vector, unit


class InnerMeCAM(Meta):
    """The meta pass is where a plain gradient step would lead, as in MLDG, and not at a fixed distance.

        g ← (1 − α − β) ∇f(θ) + α ∇f(θ+δ) + β ∇m(θ − η ∇f(θ)),   δ = ρ ∇f(θ)/‖∇f(θ)‖

    Of first order: no gradient is taken through the inner step. With η = ρ/‖∇f(θ)‖ this is MeCAM; the step is longer
    than MeCAM's while gradients are large, and shorter near convergence.

    Args:
        params: parameters or parameter groups, which may carry their own rho, alpha, ....
        base_optimizer: a class such as torch.optim.Adam, or a function of the parameters that returns an optimizer.
        rho: radius of the perturbation.
        alpha: weight of the gap f(θ+δ) − f(θ).
        beta: weight of the gap m(θ−δ) − f(θ); the paper asks for beta ≤ alpha.
        eta: learning rate of the inner step.
        virtual_domain: an object with `active()`, such as mecam.virtual.MixStyle, that is on in the meta pass alone.
        model: the network, whose buffers and frozen parameters then change as in one plain pass.
        shared_noise: draw the same random numbers in every pass.
        clip_norm: largest norm of the combined gradient.
        nonfinite: "raise" an error at a NaN or infinite gradient, "skip" the step, or "ignore" it.
        local_perturbation: under DDP, perturb each rank by its own gradient.
        track: fill `last` with the losses, gradient norms and cosines of the passes.
        base_kwargs: options of the base optimizer (lr, weight_decay, ...).

    Example:
        optimizer = InnerMeCAM(model.parameters(), torch.optim.Adam, lr=1e-3, model=model)

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
        "eta": Hyperparameter("learning rate of the inner step", search=Choice((0.01, 0.03, 0.1, 0.3))),
    }

    def __init__(
        self,
        params: ParamsT,
        base_optimizer: BaseOptimizer,
        rho: float | Tensor = 0.1,
        *,
        alpha: float | Tensor = 0.1,
        beta: float | Tensor = 0.1,
        eta: float | Tensor = 0.1,
        virtual_domain: VirtualDomain | None = None,
        model: nn.Module | None = None,
        shared_noise: bool = False,
        clip_norm: float | None = None,
        nonfinite: Nonfinite = "raise",
        local_perturbation: bool = False,
        track: bool = False,
        **base_kwargs: Any,
    ) -> None:
        values = {"rho": rho, "alpha": alpha, "beta": beta, "eta": eta}
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
        rho, alpha, beta, eta = self.values("rho", "alpha", "beta", "eta")
        g = grad_at()
        sharp = grad_at(rho * unit(g))
        return (1 - alpha - beta) * g + alpha * sharp + beta * grad_at(-eta * g, self.virtual_domain)

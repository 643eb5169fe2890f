"""MeCAM with an inner step of MLDG in place of −δ in its meta pass (experimental)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn
from torch.optim.optimizer import ParamsT

from mecam.optim._base import BaseOptimizer
from mecam.optim._meta import ALPHA, BETA, RADIUS, Meta, check_weights
from mecam.optim._passes import GradAt, VirtualDomain
from mecam.optim.hyperparameters import Choice, Hyperparameter
from mecam.optim.vector import Vector, unit


class InnerMeCAM(Meta):
    """The meta pass is where a plain gradient step would lead, as in MLDG, and not at a fixed distance.

        g ← (1 − α − β) ∇f(θ) + α ∇f(θ+δ) + β ∇m(θ − η ∇f(θ)),   δ = ρ ∇f(θ)/‖∇f(θ)‖

    Of first order: no gradient is taken through the inner step. With η = ρ/‖∇f(θ)‖ this is MeCAM; the step is longer
    than MeCAM's while gradients are large, and shorter near convergence.
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
        *,
        rho: float | Tensor = 0.1,
        alpha: float | Tensor = 0.1,
        beta: float | Tensor = 0.1,
        eta: float | Tensor = 0.1,
        virtual_domain: VirtualDomain | None = None,
        model: nn.Module | None = None,
        **options: Any,
    ) -> None:
        values = {"rho": rho, "alpha": alpha, "beta": beta, "eta": eta}
        super().__init__(params, base_optimizer, values, virtual_domain=virtual_domain, model=model, **options)

    def check(self, group: Mapping[str, Any]) -> None:
        check_weights(type(self).__name__, group["alpha"], group["beta"])

    def gradient(self, grad_at: GradAt) -> Vector:
        rho, alpha, beta, eta = self.values("rho", "alpha", "beta", "eta")
        g = grad_at()
        sharp = grad_at(rho * unit(g))
        return (1 - alpha - beta) * g + alpha * sharp + beta * grad_at(-eta * g, self.virtual_domain)

"""WSAM, Weighted SAM (Yue et al., 2023)."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from torch.optim.optimizer import ParamsT

from mecam.optim._base import BaseOptimizer
from mecam.optim._passes import GradAt
from mecam.optim.hyperparameters import RHO, Choice, Hyperparameter, check_switch
from mecam.optim.sharpness import SharpnessAware
from mecam.optim.vector import Vector, unit


class WSAM(SharpnessAware):
    """Sharpness as a regulariser with a weight w = γ/(1−γ).

        gₛ = ∇f(θ + ρ n(g))
        coupled:    g ← w gₛ + (1−w) g
        decoupled:  g, and after the base optimizer's step θ ← θ − lr·w·(gₛ − g)

    `clip_norm` bounds what the base optimizer gets, not the decoupled move.
    """

    passes = 2
    hyperparameters = {
        "rho": RHO,
        "gamma": Hyperparameter(
            "weight of the sharpness; 0.5 is SAM", high=1, open_high=True, search=Choice((0.5, 0.8, 0.9))
        ),
    }

    def __init__(
        self,
        params: ParamsT,
        base_optimizer: BaseOptimizer,
        *,
        rho: float | Tensor = 0.05,
        gamma: float | Tensor = 0.9,
        decouple: bool = True,
        model: nn.Module | None = None,
        **options: Any,
    ) -> None:
        check_switch(type(self).__name__, "decouple", decouple)
        self.decouple = decouple
        super().__init__(params, base_optimizer, {"rho": rho, "gamma": gamma}, model=model, **options)

    def gradient(self, grad_at: GradAt) -> Vector:
        rho, gamma, lr = self.values("rho", "gamma", "lr")
        w = gamma / (1 - gamma)
        g = grad_at()
        g_s = grad_at(rho * unit(g))
        if not self.decouple:
            return w * g_s + (1 - w) * g
        self.shift(-lr * w * (g_s - g))
        return g

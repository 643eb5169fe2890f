"""WSAM, Weighted SAM (Yue et al., 2023)."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from torch.optim.optimizer import ParamsT

from mecam.optim._base import BaseOptimizer
from mecam.optim._options import Nonfinite
from mecam.optim._passes import GradAt
from mecam.optim._two_passes import TwoPasses
from mecam.optim.hyperparameters import RHO, Choice, Hyperparameter, check_switch
from mecam.optim.vector import Vector, unit


class WSAM(TwoPasses):
    """Sharpness as a regulariser with a weight w = γ/(1−γ).

        gₛ = ∇f(θ + ρ n(g))
        coupled:    g ← w gₛ + (1−w) g
        decoupled:  g, and after the base optimizer's step θ ← θ − lr·w·(gₛ − g)

    `clip_norm` bounds what the base optimizer gets, not the decoupled move.

    Args:
        params: parameters or parameter groups, which may carry their own rho, gamma.
        base_optimizer: a class such as torch.optim.Adam, or a function of the parameters that returns an optimizer.
        rho: radius of the perturbation.
        gamma: weight of the sharpness; 0.5 is SAM.
        decouple: move the weights by the sharpness term after the base optimizer's step, not through it.
        model: the network, whose buffers and frozen parameters then change as in one plain pass.
        shared_noise: draw the same random numbers in every pass.
        clip_norm: largest norm of the combined gradient.
        nonfinite: "raise" an error at a NaN or infinite gradient, "skip" the step, or "ignore" it.
        local_perturbation: under DDP, perturb each rank by its own gradient.
        track: fill `last` with the losses, gradient norms and cosines of the passes.
        base_kwargs: options of the base optimizer (lr, weight_decay, ...).

    Example:
        optimizer = WSAM(model.parameters(), torch.optim.Adam, lr=1e-3, model=model)

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
        "gamma": Hyperparameter(
            "weight of the sharpness; 0.5 is SAM", high=1, open_high=True, search=Choice((0.5, 0.8, 0.9))
        ),
    }

    def __init__(
        self,
        params: ParamsT,
        base_optimizer: BaseOptimizer,
        rho: float | Tensor = 0.05,
        *,
        gamma: float | Tensor = 0.9,
        decouple: bool = True,
        model: nn.Module | None = None,
        shared_noise: bool = False,
        clip_norm: float | None = None,
        nonfinite: Nonfinite = "raise",
        local_perturbation: bool = False,
        track: bool = False,
        **base_kwargs: Any,
    ) -> None:
        check_switch(type(self).__name__, "decouple", decouple)
        self.decouple = decouple
        super().__init__(
            params,
            base_optimizer,
            {"rho": rho, "gamma": gamma},
            model=model,
            shared_noise=shared_noise,
            clip_norm=clip_norm,
            nonfinite=nonfinite,
            local_perturbation=local_perturbation,
            track=track,
            **base_kwargs,
        )

    def gradient(self, grad_at: GradAt) -> Vector:
        rho, gamma, lr = self.values("rho", "gamma", "lr")
        w = gamma / (1 - gamma)
        g = grad_at()
        g_s = grad_at(rho * unit(g))
        if not self.decouple:
            return w * g_s + (1 - w) * g
        self.shift(-lr * w * (g_s - g))
        return g

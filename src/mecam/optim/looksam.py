"""LookSAM (Liu et al., 2022)."""

from __future__ import annotations

from typing import Any, cast

from torch import Tensor, nn
from torch.optim.optimizer import ParamsT

from mecam.optim._base import BaseOptimizer
from mecam.optim._looks import Looks
from mecam.optim._options import Nonfinite
from mecam.optim._passes import GradAt
from mecam.optim.hyperparameters import RHO, Choice, Hyperparameter
from mecam.optim.vector import Vector, along, norm, ratio, unit


class LookSAM(Looks):
    """SAM every k-th step; between, the part of SAM's gradient across g is remembered and added.

        t mod k = 0:  g ← gₛ = ∇f(θ + ρ n(g)),  v = gₛ − part of gₛ along g
        otherwise:    g ← g + α (‖g‖/‖v‖) v

    A parameter without a gradient in some step does not move in it. Two passes in one step of k, one in the others. The
    host counts the steps that were taken, and decides before each: where the device may leave one out
    (nonfinite="skip"), it waits for that.

    Args:
        params: parameters or parameter groups, which may carry their own rho, alpha, ....
        base_optimizer: a class such as torch.optim.Adam, or a function of the parameters that returns an optimizer.
        rho: radius of the perturbation.
        alpha: weight of the remembered part.
        k: steps from one look to the next.
        model: the network, whose buffers and frozen parameters then change as in one plain pass.
        shared_noise: draw the same random numbers in every pass.
        clip_norm: largest norm of the combined gradient.
        nonfinite: "raise" an error at a NaN or infinite gradient, "skip" the step, or "ignore" it.
        local_perturbation: under DDP, perturb each rank by its own gradient.
        track: fill `last` with the losses, gradient norms and cosines of the passes.
        base_kwargs: options of the base optimizer (lr, weight_decay, ...).

    Example:
        optimizer = LookSAM(model.parameters(), torch.optim.Adam, lr=1e-3, model=model)

        def closure():
            optimizer.zero_grad()
            loss = loss_function(model(inputs), targets)
            loss.backward()
            return loss

        loss = optimizer.step(closure)
    """

    passes = 2
    keeps = ("v",)
    hyperparameters = {
        "rho": RHO,
        "alpha": Hyperparameter("weight of the remembered part", search=Choice((0.5, 0.7, 1.0))),
        "k": Hyperparameter(
            "steps from one look to the next", low=1, integer=True, shared=True, search=Choice((2, 5, 10))
        ),
    }

    def __init__(
        self,
        params: ParamsT,
        base_optimizer: BaseOptimizer,
        rho: float | Tensor = 0.1,
        *,
        alpha: float | Tensor = 0.7,
        k: int = 10,
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
            {"rho": rho, "alpha": alpha, "k": k},
            model=model,
            shared_noise=shared_noise,
            clip_norm=clip_norm,
            nonfinite=nonfinite,
            local_perturbation=local_perturbation,
            track=track,
            **base_kwargs,
        )

    def is_due(self) -> bool:
        return self.kept("v") is None or int(self.first("taken")) % self.first("k") == 0

    def gradient(self, grad_at: GradAt) -> Vector:
        rho, alpha = self.values("rho", "alpha")
        g = grad_at()
        if self.looks():
            g_s = grad_at(rho * unit(g))
            self.keep("v", g_s - along(g_s, g))
            return g_s
        v = cast("Vector", self.kept("v")).within(g)  # there is one: without it a look is due
        return g + alpha * ratio(norm(g), norm(v)) * v

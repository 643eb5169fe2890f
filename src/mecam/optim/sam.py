"""SAM, Sharpness-Aware Minimization (Foret et al., 2021)."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from torch.optim.optimizer import ParamsT

from mecam.optim._base import BaseOptimizer
from mecam.optim._options import Nonfinite
from mecam.optim._passes import GradAt
from mecam.optim._two_passes import TwoPasses
from mecam.optim.asam import adaptive_ascent
from mecam.optim.hyperparameters import RHO, check_switch
from mecam.optim.vector import Vector, unit


class SAM(TwoPasses):
    """Minimises f(θ+e), e = ρ g/‖g‖; with `adaptive`, ASAM's e = ρ θ² g / ‖|θ| g‖.

        g ← ∇f(θ + e)

    Args:
        params: parameters or parameter groups, which may carry their own rho.
        base_optimizer: a class such as torch.optim.Adam, or a function of the parameters that returns an optimizer.
        rho: radius of the perturbation.
        adaptive: scale the ball by the weights, as ASAM does.
        model: the network, whose buffers and frozen parameters then change as in one plain pass.
        shared_noise: draw the same random numbers in every pass.
        clip_norm: largest norm of the combined gradient.
        nonfinite: "raise" an error at a NaN or infinite gradient, "skip" the step, or "ignore" it.
        local_perturbation: under DDP, perturb each rank by its own gradient.
        track: fill `last` with the losses, gradient norms and cosines of the passes.
        base_kwargs: options of the base optimizer (lr, weight_decay, ...).

    Example:
        optimizer = SAM(model.parameters(), torch.optim.Adam, lr=1e-3, model=model)

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
    }

    def __init__(
        self,
        params: ParamsT,
        base_optimizer: BaseOptimizer,
        rho: float | Tensor = 0.05,
        *,
        adaptive: bool = False,
        model: nn.Module | None = None,
        shared_noise: bool = False,
        clip_norm: float | None = None,
        nonfinite: Nonfinite = "raise",
        local_perturbation: bool = False,
        track: bool = False,
        **base_kwargs: Any,
    ) -> None:
        check_switch(type(self).__name__, "adaptive", adaptive)
        self.adaptive = adaptive
        super().__init__(
            params,
            base_optimizer,
            {"rho": rho},
            model=model,
            shared_noise=shared_noise,
            clip_norm=clip_norm,
            nonfinite=nonfinite,
            local_perturbation=local_perturbation,
            track=track,
            **base_kwargs,
        )

    def gradient(self, grad_at: GradAt) -> Vector:
        (rho,) = self.values("rho")
        if self.adaptive:
            return grad_at(adaptive_ascent(rho, self.weights(), grad_at()))
        return grad_at(rho * unit(grad_at()))

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        for group in state_dict["param_groups"]:
            if group.get("adaptive", self.adaptive) != self.adaptive:  # as davda54/sam and pytorch_optimizer save it
                raise ValueError(
                    f"the state is of adaptive={group['adaptive']}; create SAM with this option to load it"
                )
        super().load_state_dict(state_dict)

"""ESAM, Efficient SAM (Du et al., 2022): its stochastic weight perturbation."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.optimizer import ParamsT

from mecam.optim._base import BaseOptimizer
from mecam.optim._options import Nonfinite, is_capturing
from mecam.optim._passes import GradAt
from mecam.optim._two_passes import TwoPasses
from mecam.optim.hyperparameters import RHO, Choice, Hyperparameter
from mecam.optim.vector import Vector, unit


class ESAM(TwoPasses):
    """SAM that perturbs a random part of the parameter tensors, each with probability β, 1/β times as far.

        g ← ∇f(θ + (1/β) · mask · ρ n(g))

    With beta = 1 this is SAM. The method's other half, training on the samples whose loss rises most, needs per-sample
    losses; a closure that returns one scalar has no room for it, and it is left out. The paper masks single weights,
    its code whole tensors, as here. The mask is drawn from `seed` and the number of steps taken, so that all ranks of a
    distributed run and a resumed run draw the same.

    Args:
        params: parameters or parameter groups, which may carry their own rho, beta.
        base_optimizer: a class such as torch.optim.Adam, or a function of the parameters that returns an optimizer.
        rho: radius of the perturbation.
        beta: probability with which a tensor is perturbed.
        seed: seed of the masks.
        model: the network, whose buffers and frozen parameters then change as in one plain pass.
        shared_noise: draw the same random numbers in every pass.
        clip_norm: largest norm of the combined gradient.
        nonfinite: "raise" an error at a NaN or infinite gradient, "skip" the step, or "ignore" it.
        local_perturbation: under DDP, perturb each rank by its own gradient.
        track: fill `last` with the losses, gradient norms and cosines of the passes.
        base_kwargs: options of the base optimizer (lr, weight_decay, ...).

    Example:
        optimizer = ESAM(model.parameters(), torch.optim.Adam, lr=1e-3, model=model)

        def closure():
            optimizer.zero_grad()
            loss = loss_function(model(inputs), targets)
            loss.backward()
            return loss

        loss = optimizer.step(closure)
    """

    passes = 2
    decides_on_host = True
    hyperparameters = {
        "rho": RHO,
        "beta": Hyperparameter(
            "probability with which a tensor is perturbed", high=1, open_low=True, search=Choice((0.5, 0.6, 1.0))
        ),
    }

    def __init__(
        self,
        params: ParamsT,
        base_optimizer: BaseOptimizer,
        rho: float | Tensor = 0.05,
        *,
        beta: float | Tensor = 0.6,
        seed: int = 0,
        model: nn.Module | None = None,
        shared_noise: bool = False,
        clip_norm: float | None = None,
        nonfinite: Nonfinite = "raise",
        local_perturbation: bool = False,
        track: bool = False,
        **base_kwargs: Any,
    ) -> None:
        self.seed = seed
        super().__init__(
            params,
            base_optimizer,
            {"rho": rho, "beta": beta},
            model=model,
            shared_noise=shared_noise,
            clip_norm=clip_norm,
            nonfinite=nonfinite,
            local_perturbation=local_perturbation,
            track=track,
            **base_kwargs,
        )

    def gradient(self, grad_at: GradAt) -> Vector:
        rho, beta = self.values("rho", "beta")
        e = (rho / beta) * unit(grad_at())
        return grad_at(e.select(self._mask()))

    def _mask(self) -> list[bool]:
        if is_capturing():
            raise RuntimeError("ESAM draws its mask on the host: a captured step would reuse one mask")
        generator = torch.Generator().manual_seed(1_000_003 * self.seed + int(self.first("taken")))
        # drawn in the groups' order: a Vector's depends on how the parameters are sharded
        draws = {id(p): torch.rand((), generator=generator).item() for p in self._all_parameters()}
        pairs = zip(self._space.parameters, self.per_parameter("beta"), strict=True)
        return [draws[id(p)] < float(beta) for p, beta in pairs]

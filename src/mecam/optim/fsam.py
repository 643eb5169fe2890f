"""F-SAM, Friendly SAM (Li et al., 2024)."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from torch.optim.optimizer import ParamsT

from mecam.optim._base import BaseOptimizer
from mecam.optim._options import Nonfinite
from mecam.optim._passes import GradAt
from mecam.optim._two_passes import TwoPasses
from mecam.optim.hyperparameters import RHO, Choice, Hyperparameter
from mecam.optim.vector import Vector, unit


class FSAM(TwoPasses):
    """SAM perturbed along the batch's own part of the gradient: what is left without its running mean m.

        q = g − σ m;   m ← λ m + (1−λ) g;   g ← ∇f(θ + ρ n(q))

    In the first step q = m = g. A parameter that joins later starts with m = 0; one without a gradient in some step is
    not perturbed in it, and keeps its m.

    Args:
        params: parameters or parameter groups, which may carry their own rho, sigma, ....
        base_optimizer: a class such as torch.optim.Adam, or a function of the parameters that returns an optimizer.
        rho: radius of the perturbation.
        sigma: how much of the running mean is taken out.
        lam: decay of the running mean.
        model: the network, whose buffers and frozen parameters then change as in one plain pass.
        shared_noise: draw the same random numbers in every pass.
        clip_norm: largest norm of the combined gradient.
        nonfinite: "raise" an error at a NaN or infinite gradient, "skip" the step, or "ignore" it.
        local_perturbation: under DDP, perturb each rank by its own gradient.
        track: fill `last` with the losses, gradient norms and cosines of the passes.
        base_kwargs: options of the base optimizer (lr, weight_decay, ...).

    Example:
        optimizer = FSAM(model.parameters(), torch.optim.Adam, lr=1e-3, model=model)

        def closure():
            optimizer.zero_grad()
            loss = loss_function(model(inputs), targets)
            loss.backward()
            return loss

        loss = optimizer.step(closure)
    """

    passes = 2
    keeps = ("m",)
    hyperparameters = {
        "rho": RHO,
        "sigma": Hyperparameter("how much of the running mean is taken out", search=Choice((0.5, 1.0))),
        "lam": Hyperparameter("decay of the running mean", high=1, search=Choice((0.6, 0.9, 0.95))),
    }

    def __init__(
        self,
        params: ParamsT,
        base_optimizer: BaseOptimizer,
        rho: float | Tensor = 0.05,
        *,
        sigma: float | Tensor = 1.0,
        lam: float | Tensor = 0.9,
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
            {"rho": rho, "sigma": sigma, "lam": lam},
            model=model,
            shared_noise=shared_noise,
            clip_norm=clip_norm,
            nonfinite=nonfinite,
            local_perturbation=local_perturbation,
            track=track,
            **base_kwargs,
        )

    def gradient(self, grad_at: GradAt) -> Vector:
        rho, sigma, lam = self.values("rho", "sigma", "lam")
        g = grad_at()
        m = self.kept("m")
        if m is None:
            self.keep("m", g)
            return grad_at(rho * unit(g))
        m = m.within(g)
        self.keep("m", lam * m + (1 - lam) * g)
        return grad_at(rho * unit(g - sigma * m))

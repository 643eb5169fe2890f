"""MeCAM's curvature penalty at its true scale, and a length of δ that follows the curvature (experimental)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.optimizer import ParamsT

from mecam.optim._base import BaseOptimizer
from mecam.optim._meta import Meta
from mecam.optim._options import Nonfinite
from mecam.optim._passes import GradAt, VirtualDomain
from mecam.optim.hyperparameters import Choice, Hyperparameter, check_switch
from mecam.optim.vector import Vector, norm, unit

SHORTEST = 1e-6  # over less, a second difference of float32 gradients is rounding; and 1/h² must be a number
FARTHEST = 10.0  # by which factor a length that follows the curvature may depart from rho


class CurveMeCAM(Meta):
    """Minimises f(θ) + (α/h²) (f(θ+δ) + m(θ−δ) − 2 f(θ)), δ = h u, u = ∇f(θ)/‖∇f(θ)‖ held constant.

        g ← ∇f(θ) + (α/h²) (∇f(θ+δ) + ∇m(θ−δ) − 2 ∇f(θ))

    Without a virtual domain m is f, and the penalty is α uᵀHu up to order h². MeCAM leaves out 1/h²: with α = β it is
    this at a penalty of α ρ². The plain gradient's weight 1 − 2α/h² may be negative, which is right here, but leaves
    nothing to hold f(θ) down: on PACS, where ρ = 0.1 and α = 0.01 make it −1, training fell apart, and did not with
    `normalised`. A virtual domain puts (α/h²) (∇m − ∇f) on top, of order 1/h² and not a curvature: at a large α do
    without.

    `scaled=False` leaves out 1/h² as MeCAM does. `normalised=True` divides the penalty by ‖∇f(θ)‖² + 1, which is held
    constant as δ is: the paper's definition of C.

    h is `rho`. A `share` s above 0 lets it follow the curvature: over h = s L, L = ‖∇f‖/‖Hu‖, the gradient changes by
    about s of itself; ‖Hu‖ is a running mean of ‖∇f(θ+δ) − ∇f(θ)‖/h in earlier steps, and h stays within a factor of 10
    of rho. Gradients of relative precision ε make an error of 4ε‖∇f‖/h² in the second difference; what it leaves out is
    about (h²/12) ‖∇f‖/L⁴, if each further derivative is some 1/L of the one before. The two together are least at
    s = (48 ε)^¼: 0.05 in float32, 0.5 with TF32 and 0.8 with bfloat16 convolutions. A batch's own noise does not enter,
    since all passes see the same batch; with dropout it does, unless `shared_noise`.

    That balance is for smooth networks. ReLUs put kinks into the gradient, and over lengths at which these stand out
    its second difference falls slower than h², so that the penalty grows as h gets shorter: on resnet8 after 60 steps
    on shapes, in float64, it is 1.6 times as large at h = 0.025 as at 0.1, and 34 times at 0.003.

    Args:
        params: parameters or parameter groups, which may carry their own rho, alpha, ....
        base_optimizer: a class such as torch.optim.Adam, or a function of the parameters that returns an optimizer.
        rho: length of δ.
        alpha: weight of the curvature along the gradient.
        share: by what part of itself the gradient should change over δ; 0 for a fixed length.
        scaled: divide the penalty by h².
        normalised: divide the penalty by ‖∇f(θ)‖² + 1.
        virtual_domain: an object with `active()`, such as mecam.virtual.MixStyle, that is on in the meta pass alone.
        model: the network, whose buffers and frozen parameters then change as in one plain pass.
        shared_noise: draw the same random numbers in every pass.
        clip_norm: largest norm of the combined gradient.
        nonfinite: "raise" an error at a NaN or infinite gradient, "skip" the step, or "ignore" it.
        local_perturbation: under DDP, perturb each rank by its own gradient.
        track: fill `last` with the losses, gradient norms and cosines of the passes.
        base_kwargs: options of the base optimizer (lr, weight_decay, ...).

    Example:
        optimizer = CurveMeCAM(model.parameters(), torch.optim.Adam, lr=1e-3, model=model)

        def closure():
            optimizer.zero_grad()
            loss = loss_function(model(inputs), targets)
            loss.backward()
            return loss

        loss = optimizer.step(closure)
    """

    passes = 3
    notes = ("curvature",)
    hyperparameters = {
        "rho": Hyperparameter("length of δ", low=SHORTEST, search=Choice((0.01, 0.05, 0.1, 0.2))),
        "alpha": Hyperparameter("weight of the curvature along the gradient", search=Choice((1e-3, 1e-2, 1e-1))),
        "share": Hyperparameter(
            "by what part of itself the gradient should change over δ; 0 for a fixed length",
            shared=True,
            search=Choice((0.0, 0.05, 0.5, 0.8)),
        ),
    }

    def __init__(
        self,
        params: ParamsT,
        base_optimizer: BaseOptimizer,
        rho: float | Tensor = 0.1,
        *,
        alpha: float | Tensor = 0.01,
        share: float = 0.0,
        scaled: bool = True,
        normalised: bool = False,
        virtual_domain: VirtualDomain | None = None,
        model: nn.Module | None = None,
        shared_noise: bool = False,
        clip_norm: float | None = None,
        nonfinite: Nonfinite = "raise",
        local_perturbation: bool = False,
        track: bool = False,
        **base_kwargs: Any,
    ) -> None:
        check_switch(type(self).__name__, "scaled", scaled)
        check_switch(type(self).__name__, "normalised", normalised)
        self.scaled, self.normalised = scaled, normalised
        values = {"rho": rho, "alpha": alpha, "share": share}
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

    def gradient(self, grad_at: GradAt) -> Vector:
        rho, alpha = self.values("rho", "alpha")
        g = grad_at()
        stretch = self._stretch(g)
        h = rho * stretch
        delta = h * unit(g)
        g_plus = grad_at(+delta)
        if self.first("share") > 0:
            self.note("curvature", norm(g_plus - g) / (self.first("rho") * stretch))
        g_minus = grad_at(-delta, self.virtual_domain)
        weight = alpha / (h * h) if self.scaled else alpha
        if self.normalised:
            weight = weight / (norm(g).square() + 1)
        return g + weight * (g_plus + g_minus - 2 * g)

    def _stretch(self, g: Vector) -> float | Tensor:
        """h in units of rho; 1 before the curvature is known."""
        share, rho = self.first("share"), self.first("rho")
        if share == 0:
            return 1.0
        size = norm(g)
        curvature = self.noted("curvature").to(size.device)
        # nothing over nothing: a zero gradient, which is not moved along anyway
        wanted = (share * size / (curvature * rho)).nan_to_num(nan=1.0)
        return torch.where(curvature.isinf(), 1.0, wanted.clamp(1 / FARTHEST, FARTHEST)).to(size.dtype)

"""MeCAM whose perturbed passes are taken in some steps only: every k-th, late, or gated (experimental)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.optim.optimizer import ParamsT

from mecam.optim._base import BaseOptimizer
from mecam.optim._looks import Looks
from mecam.optim._meta import ALPHA, BETA, RADIUS, Meta, check_weights
from mecam.optim._options import Nonfinite
from mecam.optim._passes import GradAt, VirtualDomain
from mecam.optim.hyperparameters import Choice, Hyperparameter
from mecam.optim.last import as_number
from mecam.optim.vector import Vector, ratio, unit


class ThinMeCAM(Looks, Meta):
    """MeCAM in some steps, called looks; the base optimizer's own step in the others.

        look:       g ← (1 − α − β) ∇f(θ) + α ∇f(θ+δ) + β ∇m(θ−δ)
        otherwise:  g ← ∇f(θ)

    The first look is at step `start`; from there on every `every`-th step is one. With a `gate`, the looks measure what
    the two gaps are worth,

        gap = (α (f(θ+δ) − f(θ)) + β (m(θ−δ) − f(θ))) / f(θ)

    and every step is a look while its running mean is, in magnitude, above the gate: the paper's first principle, that
    curvature need not count far from convergence, as a way to save passes. With dropout the gaps are mostly noise
    unless `shared_noise`. Near convergence f is small, and the gap a few times that: on PACS a gate of 0.1 was open
    nearly always. Gates of 0.1 to 1 took 2.5 to 2.0 times ERM's time there, start = 650 of 1,000 steps 1.5.

    Where MeCAM's step takes r plain steps of time, steps of which a share q are looks take 1 + q (r − 1) on average.
    With r = 3 (the passes), every = 3 comes to 1.67 and every = 4 to 1.5; a gate with every = 10 to 1.2 while it is
    shut and 3 while it is open, so to 1.7 or less if it is open in at most 27 % of the steps.

    The host decides before each step, and waits for the device only after looks, and only if there is a gate. A step
    that the device leaves out (nonfinite="skip") it counts like any other. In a process group the gaps are averaged
    over all ranks, so that these decide alike.

    Args:
        params: parameters or parameter groups, which may carry their own rho, alpha, ....
        base_optimizer: a class such as torch.optim.Adam, or a function of the parameters that returns an optimizer.
        rho: radius of the perturbation.
        alpha: weight of the gap f(θ+δ) − f(θ).
        beta: weight of the gap m(θ−δ) − f(θ); the paper asks for beta ≤ alpha.
        every: steps from one look to the next.
        start: steps before the first look.
        gate: magnitude of the gap above which every step is a look; 0 for none.
        virtual_domain: an object with `active()`, such as mecam.virtual.MixStyle, that is on in the meta pass alone.
        model: the network, whose buffers and frozen parameters then change as in one plain pass.
        shared_noise: draw the same random numbers in every pass.
        clip_norm: largest norm of the combined gradient.
        nonfinite: "raise" an error at a NaN or infinite gradient, "skip" the step, or "ignore" it.
        local_perturbation: under DDP, perturb each rank by its own gradient.
        track: fill `last` with the losses, gradient norms and cosines of the passes.
        base_kwargs: options of the base optimizer (lr, weight_decay, ...).

    Example:
        optimizer = ThinMeCAM(model.parameters(), torch.optim.Adam, lr=1e-3, model=model)

        def closure():
            optimizer.zero_grad()
            loss = loss_function(model(inputs), targets)
            loss.backward()
            return loss

        loss = optimizer.step(closure)
    """

    passes = 3
    notes = ("gap",)
    counters = (*Meta.counters, "begun")
    hyperparameters = {
        "rho": RADIUS,
        "alpha": ALPHA,
        "beta": BETA,
        "every": Hyperparameter(
            "steps from one look to the next", low=1, integer=True, shared=True, search=Choice((3, 5, 10))
        ),
        "start": Hyperparameter(
            "steps before the first look", integer=True, shared=True, search=Choice((0, 500, 1000))
        ),
        "gate": Hyperparameter(
            "magnitude of the gap above which every step is a look; 0 for none",
            shared=True,
            search=Choice((0.0, 0.1, 0.5, 1.0)),
        ),
    }

    def __init__(
        self,
        params: ParamsT,
        base_optimizer: BaseOptimizer,
        rho: float | Tensor = 0.1,
        *,
        alpha: float | Tensor = 0.1,
        beta: float | Tensor = 0.1,
        every: int = 3,
        start: int = 0,
        gate: float = 0.0,
        virtual_domain: VirtualDomain | None = None,
        model: nn.Module | None = None,
        shared_noise: bool = False,
        clip_norm: float | None = None,
        nonfinite: Nonfinite = "raise",
        local_perturbation: bool = False,
        track: bool = False,
        **base_kwargs: Any,
    ) -> None:
        self._gap: float | None = None  # what the host knows of the gap; None: it must ask
        values = {"rho": rho, "alpha": alpha, "beta": beta, "every": every, "start": start, "gate": gate}
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

    def is_due(self) -> bool:
        taken = self.first("taken")
        step = self.first("begun") if isinstance(taken, Tensor) else taken  # the device may keep its count to itself
        since = step - self.first("start")
        for group in self.param_groups:
            group[self.key("begun")] = step + 1
        looks: bool = since >= 0 and (since % self.first("every") == 0 or self._is_open(self.first("gate")))
        if looks:
            self._gap = None
        return looks

    def gradient(self, grad_at: GradAt) -> Vector:
        if not self.looks():
            return grad_at()
        rho, alpha, beta = self.values("rho", "alpha", "beta")
        g = grad_at()
        delta = rho * unit(g)
        combined = (1 - alpha - beta) * g + alpha * grad_at(+delta) + beta * grad_at(-delta, self.virtual_domain)
        if self.first("gate") > 0:
            self._measure()
        return combined

    def _commit(self, taken: bool | Tensor, shift: Vector | None) -> None:
        super()._commit(taken, shift)
        for group in self.param_groups:
            if not isinstance(group[self.key("taken")], Tensor):
                group[self.key("begun")] = group[self.key("taken")]

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        super().load_state_dict(state_dict)
        self._gap = None

    def _is_open(self, gate: float) -> bool:
        if gate == 0:
            return False
        if self._gap is None:
            self._gap = float(self.noted("gap"))
        return abs(self._gap) > gate

    def _measure(self) -> None:
        device = self._space.kinds[0].device
        f, plus, minus = (as_number(loss).to(device) for loss in cast("Any", self._running).losses)
        gaps = self.first("alpha") * (plus - f) + self.first("beta") * (minus - f)
        total = torch.stack([gaps, f])
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            torch.distributed.all_reduce(total, group=getattr(self.model, "process_group", None))
        self.note("gap", ratio(total[0], total[1]))

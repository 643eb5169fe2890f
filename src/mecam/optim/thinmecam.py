"""MeCAM with perturbed passes in some steps only: every k-th, late, or gated."""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor

from mecam.hyperparameters import Choice, Hyperparameter
from mecam.optim._meta import ALPHA, BETA, RADIUS, Meta
from mecam.optim._passes import GradAt
from mecam.optim.last import as_number
from mecam.optim.looksam import Looks
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

    The host decides before each step. With a gate it waits for the device after each look. Skipped steps
    (nonfinite="skip") count. In a process group the gaps are averaged over all ranks, so that all decide alike.

    Args:
        virtual_domain: an object with `active()`, such as mecam.virtual.MixStyle, that is on in the meta pass alone.
    """

    passes = 3
    notes = ("gap",)
    _gap: float | None = None  # the gap, once read from the device
    counters = (*Meta.counters, "begun")
    hyperparameters = {
        "rho": RADIUS,
        "alpha": ALPHA,
        "beta": BETA,
        "every": Hyperparameter(
            "steps from one look to the next", default=3, low=1, integer=True, shared=True, search=Choice((3, 5, 10))
        ),
        "start": Hyperparameter(
            "steps before the first look", default=0, integer=True, shared=True, search=Choice((0, 500, 1000))
        ),
        "gate": Hyperparameter(
            "magnitude of the gap above which every step is a look; 0 for none",
            default=0.0,
            shared=True,
            search=Choice((0.0, 0.1, 0.5, 1.0)),
        ),
    }

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

"""DGSAM, Decreased-overhead Gradual SAM (Song et al., 2025)."""

from __future__ import annotations

import torch
from torch import Tensor

from mecam.optim._domains import ByDomain, Losses, evaluated
from mecam.optim._options import is_capturing, radius
from mecam.optim._passes import GradAt
from mecam.optim.vector import Vector, unit


class DGSAM(ByDomain):
    """Climb domain by domain, and descend along the mean of all gradients on the way.

        gⱼ = ∇f_d(j)(θⱼ),  θⱼ₊₁ = θⱼ + ρ n(gⱼ),  j = 0, ..., S;   g ← (g₀ + ... + g_S)/(S+1)

    d is a random order of the S domains, drawn in each step; the first domain comes again at the end. Every pass is on
    one domain, so a step costs 1 + 1/S plain passes. The closure hands over a function per domain:
    `optimizer.over_domains(losses)`. `step` returns the loss of the first domain, and batch-norm statistics are those
    of its pass. This is the rule of published code, which multiplies g by S; base optimizers such as Adam divide that
    out.

    Args:
        seed: seed of the orders. All ranks of a distributed run and a resumed run draw the same.
    """

    one_at_a_time = True
    decides_on_host = True
    seed: int
    options = {"seed": 0}
    hyperparameters = {"rho": radius(0.05)}
    transient = (*ByDomain.transient, "_turn")
    _turn: int | None = None  # number of the pass under way

    def gradient(self, grad_at: GradAt) -> Vector:
        (rho,) = self.values("rho")
        try:
            self._turn = 0
            g = grad_at()
            self._require_domains()
            total, away = g.copy(), (rho * unit(g)).copy()
            for turn in range(1, self._domains + 1):
                self._turn = turn
                g = grad_at(away)
                total = (total + g).collapse(into=total)
                away = (away + rho * unit(g)).collapse(into=away)
            return (1 / (self._domains + 1)) * total
        finally:
            self._turn = None

    def _combine(self, losses: Losses) -> Tensor:
        if self._turn is None:  # a plain step
            return evaluated(losses).mean()
        if is_capturing():
            raise RuntimeError("DGSAM draws the order of the domains on the host: a captured step would reuse one")
        generator = torch.Generator().manual_seed(1_000_003 * self.seed + int(self.first("taken")))
        order = torch.randperm(len(losses), generator=generator).tolist()
        loss = losses[order[self._turn % len(losses)]]
        return loss if isinstance(loss, Tensor) else loss()

"""DISAM, Domain-Inspired SAM (Zhang et al., 2024)."""

from __future__ import annotations

from torch import Tensor

from mecam.hyperparameters import Choice, Hyperparameter
from mecam.optim._domains import ByDomain, Losses, evaluated, over_ranks
from mecam.optim._options import radius
from mecam.optim._passes import GradAt
from mecam.optim._two_passes import TwoPasses
from mecam.optim.vector import Vector, unit


class DISAM(ByDomain, TwoPasses):
    """SAM perturbed less along domains whose loss is above the average.

        e = ρ n(∇(f − λ Var_d f_d));   g ← ∇f(θ + e)

    f is the mean of the domains' losses f_d, and Var_d their population variance; in data-parallel runs, of the means
    over all ranks. The closure hands over the losses: `optimizer.over_domains(losses)`. With one domain this is SAM.
    """

    hyperparameters = {
        "rho": radius(0.05),
        "lam": Hyperparameter(
            "weight of the variance of the domains' losses", default=0.1, shared=True, search=Choice((0.01, 0.1, 1.0))
        ),
    }
    transient = (*ByDomain.transient, "_weighs")
    _weighs = False  # the pass under way is the one along whose gradient the weights are perturbed

    def gradient(self, grad_at: GradAt) -> Vector:
        (rho,) = self.values("rho")
        self._weighs = True
        try:
            ascent = grad_at()
        finally:
            self._weighs = False
        self._require_domains()
        return grad_at(rho * unit(ascent))

    def _combine(self, losses: Losses) -> Tensor:
        values = evaluated(losses)
        mean = values.mean()
        if not self._weighs and self._running is not None:  # outside of a step: the pass before first_step()
            return mean
        seen = values.detach()
        seen = seen if self.local_perturbation else over_ranks(seen, self.model)
        weights: Tensor = 1 - 2 * self.first("lam") * (seen - seen.mean())
        weighted = (weights * values).mean()
        return mean.detach() + (weighted - weighted.detach())  # f, with the gradient of f − λ Var f_d

"""IB-ERM, ERM with an information bottleneck (Ahuja et al., 2021)."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from mecam.methods._anneal import Annealed, annealing_step, penalty_weight
from mecam.methods.base import Batch
from mecam.models.network import Network


class IBERM(Annealed):
    """Penalize the variance of the features within each domain, a bound on their entropy.

    CE + w mean_d mean_k Var_d(z_k),   the unbiased variance;   w = 0, λ from the annealing step on
    """

    name = "iberm"
    weighted = True
    capturable = True
    images = 2
    before = 0.0
    lam = penalty_weight(100.0)
    anneal = annealing_step(500.0)

    def loss(self, network: Network, batch: Batch, draw: Any, state: Any) -> tuple[Tensor, Any]:
        z = network.features(batch.images)
        loss = batch.cross_entropy(network.head(z))
        return loss + self.weight(batch.step) * bottleneck(z, batch.domains), state


def bottleneck(z: Tensor, domains: int) -> Tensor:
    """Return the variance of a feature within a domain, on average."""
    return z.view(domains, -1, z.shape[1]).var(1).mean()

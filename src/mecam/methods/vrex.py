"""VREx, risk extrapolation by the variance of risks (Krueger et al., 2021)."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from mecam.methods._anneal import Annealed, annealing_step, penalty_weight
from mecam.methods.base import Batch
from mecam.models.network import Network


class VREx(Annealed):
    """Penalize the variance of the domains' losses.

    mean_d CE_d + w Var_d(CE_d),   the population variance;   w = 1, λ from the annealing step on
    """

    name = "vrex"
    weighted = True
    capturable = True
    on_features = True
    sources = 2
    lam = penalty_weight(10.0)
    anneal = annealing_step(500.0)

    def loss(self, network: Network, batch: Batch, draw: Any, state: Any) -> tuple[Tensor, Any]:
        losses = batch.domain_losses(network(batch.images))
        return losses.mean() + self.weight(batch.step) * losses.var(correction=0), state

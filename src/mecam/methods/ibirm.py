"""IB-IRM, IRM with an information bottleneck (Ahuja et al., 2021)."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from mecam.methods._anneal import annealing_step, penalty_weight
from mecam.methods.base import Batch, Setting
from mecam.methods.iberm import bottleneck
from mecam.methods.irm import IRM, penalized
from mecam.models.network import Network


class IBIRM(IRM):
    """IRM with a penalty on the variance of the features within each domain.

    mean_d [CE_d + w P_d] + v mean_d mean_k Var_d(z_k),   P_d as in IRM;   v = 0, λ_v from its annealing step on
    """

    name = "ibirm"
    capturable = True
    on_features = False
    ib_lam = penalty_weight(100.0, of="variance")
    ib_anneal = annealing_step(500.0, of="variance")

    def build(self, network: Network, setting: Setting) -> nn.Module:
        self.ib_start = setting.scaled(self.ib_anneal)
        return super().build(network, setting)

    def restarts(self, step: int) -> bool:
        return super().restarts(step) or 0 < step == self.ib_start

    def loss(self, network: Network, batch: Batch, draw: Any, state: Any) -> tuple[Tensor, Any]:
        z = network.features(batch.images)
        loss = penalized(network.head(z), batch, self.weight(batch.step))
        if batch.step >= self.ib_start:
            loss = loss + self.ib_lam * bottleneck(z, batch.domains)
        return loss, state

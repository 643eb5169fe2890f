"""GroupDRO, distributionally robust optimization over groups (Sagawa et al., 2020)."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from mecam.hyperparameters import Hyperparameter, LogUniform
from mecam.methods.base import Batch, Method, Setting
from mecam.models.network import Network


class GroupDRO(Method):
    """Weigh the domains with larger losses more.

        q_d ∝ q_d exp(η CE_d), Σ q = 1;   Σ_d q_d CE_d,   q constant in the gradient

    The state is log q, in which the update is a sum: it cannot overflow, and its mean over processes equals that of one
    process with all images. All domains go through the network in one batch, which matters only where batch norm uses
    batch statistics.
    """

    name = "groupdro"
    weighted = True
    capturable = True
    on_features = True
    sources = 2
    eta = Hyperparameter("how fast the weights of the domains follow their losses", 0.01, search=LogUniform(-3, -1))

    def build(self, network: Network, setting: Setting) -> nn.Module:
        self.zeros = network.head.weight.new_zeros(setting.domains)
        return network

    def initial_state(self) -> Tensor:
        return self.zeros

    def loss(self, network: Network, batch: Batch, draw: Any, state: Tensor) -> tuple[Tensor, Tensor]:
        losses = batch.domain_losses(network(batch.images))
        log_q = (state + self.eta * losses.detach()).log_softmax(0)
        return log_q.exp() @ losses, log_q

"""ERM, empirical risk minimization: the mean cross-entropy over all source domains."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from mecam.methods.base import Batch, Method
from mecam.models.network import Network


class ERM(Method):
    """min CE(h(z), y) on the concatenated batch"""

    name = "erm"
    weighted = True
    accumulates = True
    capturable = True
    on_features = True
    by_domain = True

    def loss(self, network: Network, batch: Batch, draw: Any, state: Any) -> tuple[Tensor, Any]:
        return batch.cross_entropy(network(batch.images)), state

    def domain_losses(self, network: Network, batch: Batch, draw: Any, state: Any) -> Tensor:
        return batch.domain_losses(network(batch.images))  # in one forward

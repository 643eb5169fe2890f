"""SD, spectral decoupling (Pezeshki et al., 2021): an L2 penalty on the logits."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from mecam.hyperparameters import Hyperparameter, LogUniform
from mecam.methods.base import Batch, Method
from mecam.models.network import Network


class SD(Method):
    """Penalize large logits, so that features learned early do not silence the gradients of others.

    CE + λ mean(l²),   l the logits
    """

    name = "sd"
    weighted = True
    accumulates = True
    capturable = True
    on_features = True
    by_domain = True
    lam = Hyperparameter("weight of the squared logits", 0.1, search=LogUniform(-5, -1))

    def loss(self, network: Network, batch: Batch, draw: Any, state: Any) -> tuple[Tensor, Any]:
        logits = network(batch.images)
        return batch.cross_entropy(logits) + self.lam * logits.square().mean(), state

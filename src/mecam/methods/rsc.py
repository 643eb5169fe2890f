"""RSC, representation self-challenging (Huang et al., 2020)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from mecam.hyperparameters import Hyperparameter, Uniform
from mecam.methods.base import Batch, Method
from mecam.models.network import Network


class RSC(Method):
    """Mute the features that the correct class relies on most, in the images whose confidence drops most.

        CE(h(z · m), y);   m_ik = [G_ik < the (1−f)-quantile of G_i]  or  [c_i < the (1−b)-quantile of c]
        G = ∂(Σ_i logit_{i,y_i})/∂z,   c_i = p_{y_i}(z) − p_{y_i}(z · m) with the first part of m alone

    For a linear head, G_i is the weight row of class y_i, so no gradient is computed.
    """

    name = "rsc"
    weighted = True
    capturable = True
    on_features = True
    feature_drop = Hyperparameter(
        "share of an image's features that is muted, one at least",
        1 / 3,
        high=1,
        open_high=True,
        search=Uniform(0, 0.5),
    )
    batch_drop = Hyperparameter(
        "share of the images in which they are, one at least", 1 / 3, high=1, search=Uniform(0, 0.5)
    )

    def loss(self, network: Network, batch: Batch, draw: Any, state: Any) -> tuple[Tensor, Any]:
        z = network.features(batch.images)
        return batch.cross_entropy(network.head(z * self._kept(network.head, z, batch.labels))), state

    @torch.no_grad()
    def _kept(self, head: nn.Linear, z: Tensor, labels: Tensor) -> Tensor:
        """Return the mask of the features that stay, per image."""
        kept = (head.weight < head.weight.quantile(1 - self.feature_drop, dim=1, keepdim=True))[labels]
        change: Tensor = (head(z).softmax(1) - head(z * kept).softmax(1)).gather(1, labels[:, None])
        return kept | (change < change.quantile(1 - self.batch_drop))

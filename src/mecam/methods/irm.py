"""IRM, invariant risk minimization (Arjovsky et al., 2019)."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from mecam.methods._anneal import Annealed, annealing_step, penalty_weight
from mecam.methods.base import Batch
from mecam.models.network import Network


class IRM(Annealed):
    """Require that the scale 1 of the logits is optimal in every domain.

        mean_d [CE_d + w P_d],   P_d = ∂ₛCE(s l_even) · ∂ₛCE(s l_odd) at s = 1;   w = 1, λ from the annealing step on

    Two halves of the domain's images, even and odd, make the product an unbiased estimate of the squared slope. It can
    be negative. As ∂ₛCE(s l) = mean_i ⟨softmax(l_i) − onehot(y_i), l_i⟩ at s = 1, there is no double backward.
    """

    name = "irm"
    weighted = True
    capturable = True
    on_features = True
    images = 2
    lam = penalty_weight(100.0)
    anneal = annealing_step(500.0)

    def loss(self, network: Network, batch: Batch, draw: Any, state: Any) -> tuple[Tensor, Any]:
        return penalized(network(batch.images), batch, self.weight(batch.step)), state


def penalized(logits: Tensor, batch: Batch, weight: float) -> Tensor:
    """Return mean_d [CE_d + w P_d]."""
    slopes = batch.weigh(_slopes(logits, batch.labels)).view(batch.domains, -1)
    penalty = (slopes[:, ::2].mean(1) * slopes[:, 1::2].mean(1)).mean()
    return batch.cross_entropy(logits) + weight * penalty


def _slopes(logits: Tensor, labels: Tensor) -> Tensor:
    """Return d/ds CE(s l, y) at s = 1 for every image."""
    own = logits.gather(1, labels[:, None])[:, 0]
    return (logits.softmax(1) * logits).sum(1) - own

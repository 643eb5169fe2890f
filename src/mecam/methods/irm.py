"""IRM, invariant risk minimization (Arjovsky et al., 2019)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from torch import Tensor
from torch.nn import functional as F

from mecam.methods._anneal import Annealed
from mecam.methods.base import Batch
from mecam.models.network import Network
from mecam.optim.hyperparameters import Hyperparameter, LogUniform


class IRM(Annealed):
    """Asks that the same scale of the logits, 1, be optimal in every domain.

        mean_d [CE_d + w P_d],   P_d = ∂ₛCE(s l_even) · ∂ₛCE(s l_odd) at s = 1;   w = 1, λ from the annealing step on

    Two halves of the domain's images, even and odd, make the product an unbiased estimate of the squared slope. It may
    be negative. As ∂ₛCE(s l) = mean_i ⟨softmax(l_i) − onehot(y_i), l_i⟩ at s = 1, there is no double backward.
    """

    name: ClassVar[str] = "irm"
    recordable: ClassVar[bool] = True
    images: ClassVar[int] = 2
    compares: ClassVar[bool] = True
    hyperparameters: ClassVar[Mapping[str, Hyperparameter]] = {
        "lam": Hyperparameter("weight of the penalty, once annealed", search=LogUniform(-1, 5)),
        "anneal": Hyperparameter(
            "step at which the penalty takes this weight; scaled down in runs shorter than 5,000 steps",
            search=LogUniform(0, 4),
        ),
    }

    def __init__(self, *, lam: float = 100.0, anneal: float = 500.0) -> None:
        super().__init__(lam=lam, anneal=anneal)

    def loss(self, network: Network, batch: Batch, draw: Any, state: Any) -> tuple[Tensor, Any]:  # noqa: ARG002
        logits = network(batch.images)
        slopes = _slopes(logits, batch.labels).view(batch.domains, -1)
        penalty = (slopes[:, ::2].mean(1) * slopes[:, 1::2].mean(1)).mean()
        return F.cross_entropy(logits, batch.labels) + self.weight(batch.step) * penalty, state


def _slopes(logits: Tensor, labels: Tensor) -> Tensor:
    """d/ds CE(s l, y) at s = 1, an image at a time."""
    own = logits.gather(1, labels[:, None])[:, 0]
    return (logits.softmax(1) * logits).sum(1) - own

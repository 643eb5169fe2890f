"""VREx, risk extrapolation by the variance of risks (Krueger et al., 2021)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from torch import Tensor
from torch.nn import functional as F

from mecam.methods._anneal import Annealed
from mecam.methods.base import Batch
from mecam.models.network import Network
from mecam.optim.hyperparameters import Hyperparameter, LogUniform


class VREx(Annealed):
    """Evens out the domains' losses by a penalty on their variance.

    mean_d CE_d + w Var_d(CE_d),   the population variance;   w = 1, λ from the annealing step on
    """

    name: ClassVar[str] = "vrex"
    recordable: ClassVar[bool] = True
    sources: ClassVar[int] = 2
    compares: ClassVar[bool] = True
    hyperparameters: ClassVar[Mapping[str, Hyperparameter]] = {
        "lam": Hyperparameter("weight of the penalty, once annealed", search=LogUniform(-1, 5)),
        "anneal": Hyperparameter(
            "step at which the penalty takes this weight; scaled down in runs shorter than 5,000 steps",
            search=LogUniform(0, 4),
        ),
    }

    def __init__(self, *, lam: float = 10.0, anneal: float = 500.0) -> None:
        super().__init__(lam=lam, anneal=anneal)

    def loss(self, network: Network, batch: Batch, draw: Any, state: Any) -> tuple[Tensor, Any]:  # noqa: ARG002
        each = F.cross_entropy(network(batch.images), batch.labels, reduction="none")
        losses = each.view(batch.domains, -1).mean(1)
        return losses.mean() + self.weight(batch.step) * losses.var(correction=0), state

"""MMD: features of the same distribution in every domain, by maximum mean discrepancy (Li et al., 2018)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from mecam.methods.base import Batch, Method
from mecam.models.network import Network
from mecam.optim.hyperparameters import Hyperparameter, LogUniform


class MMD(Method):
    """Matches the distributions of features in each two domains, by a kernel.

    CE + γ mean_{i<j} MMD²(z_i, z_j),   MMD²(x, y) = mean k(x, x') + mean k(y, y') − 2 mean k(x, y)
    k(x, y) = Σ_c exp(−c ‖x−y‖²),   c = 10⁻³, 10⁻², ..., 10³
    """

    name: ClassVar[str] = "mmd"
    recordable: ClassVar[bool] = True
    sources: ClassVar[int] = 2
    compares: ClassVar[bool] = True
    hyperparameters: ClassVar[Mapping[str, Hyperparameter]] = {
        "gamma": Hyperparameter("weight of the discrepancy", search=LogUniform(-1, 1)),
    }

    def __init__(self, *, gamma: float = 1.0) -> None:
        self.gamma = float(gamma)

    def loss(self, network: Network, batch: Batch, draw: Any, state: Any) -> tuple[Tensor, Any]:  # noqa: ARG002
        z = network.features(batch.images)
        loss = F.cross_entropy(network.head(z), batch.labels)
        blocks = kernel(z).view(batch.domains, len(z) // batch.domains, batch.domains, -1)
        return loss + self.gamma * mean_over_pairs(blocks.mean((1, 3))), state


def kernel(z: Tensor) -> Tensor:
    """k between each two rows of z."""
    squares = (z * z).sum(1)
    distances = (squares[:, None] + squares - 2 * z @ z.T).clamp(min=0)
    # An image's distance to itself is 0 but for rounding, which c = 1000 would turn into a gradient.
    distances = distances.masked_fill(torch.eye(len(z), dtype=torch.bool, device=z.device), 0)
    scales = torch.logspace(-3, 3, 7, dtype=z.dtype, device=z.device)
    return (-scales[:, None, None] * distances).exp().sum(0)


def mean_over_pairs(inner: Tensor) -> Tensor:
    """mean_{i<j} ‖a_i − a_j‖² from the inner products ⟨a_i, a_j⟩: twice the variance of a."""
    n = len(inner)
    return 2 * (inner.diagonal().sum() - inner.sum() / n) / (n - 1)  # trace's backward would wait for a GPU

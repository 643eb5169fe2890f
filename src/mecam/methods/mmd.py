"""MMD: align the feature distributions of the domains by maximum mean discrepancy (Li et al., 2018)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from mecam.hyperparameters import Hyperparameter, LogUniform
from mecam.methods.base import Batch, Method
from mecam.models.network import Network


class MMD(Method):
    """Match the feature distributions of every pair of domains, by a kernel.

    CE + γ mean_{i<j} MMD²(z_i, z_j),   MMD²(x, y) = mean k(x, x') + mean k(y, y') − 2 mean k(x, y)
    k(x, y) = Σ_c exp(−c ‖x−y‖²),   c = 10⁻³, 10⁻², ..., 10³
    """

    name = "mmd"
    weighted = True
    capturable = True
    sources = 2
    gamma = Hyperparameter("weight of the discrepancy", 1.0, search=LogUniform(-1, 1))

    def loss(self, network: Network, batch: Batch, draw: Any, state: Any) -> tuple[Tensor, Any]:
        z = network.features(batch.images)
        loss = batch.cross_entropy(network.head(z))
        blocks = kernel(z).view(batch.domains, len(z) // batch.domains, batch.domains, -1)
        return loss + self.gamma * mean_over_pairs(blocks.mean((1, 3))), state


def kernel(z: Tensor, *, least: int = -3) -> Tensor:
    """Return k for every pair of rows of z, with c from 10^least to 1000."""
    squares = (z * z).sum(1)
    distances = (squares[:, None] + squares - 2 * z @ z.T).clamp(min=0)
    # Rounding makes an image's distance to itself nonzero, which c = 1000 would turn into a gradient.
    distances = distances.masked_fill(torch.eye(len(z), dtype=torch.bool, device=z.device), 0)
    scales = torch.logspace(least, 3, 4 - least, dtype=z.dtype, device=z.device)
    return (-scales[:, None, None] * distances).exp().sum(0)


def mean_over_pairs(inner: Tensor) -> Tensor:
    """Return mean_{i<j} ‖a_i − a_j‖², twice the variance of a, from the inner products ⟨a_i, a_j⟩."""
    n = len(inner)
    return 2 * (inner.diagonal().sum() - inner.sum() / n) / (n - 1)  # the backward of trace would synchronize

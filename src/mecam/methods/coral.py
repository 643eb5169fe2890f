"""CORAL, correlation alignment (Sun and Saenko, 2016)."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from mecam.hyperparameters import Hyperparameter, LogUniform
from mecam.methods.base import Batch, Method
from mecam.methods.mmd import mean_over_pairs
from mecam.models.network import Network


class CORAL(Method):
    """Match the means and covariances of the features of every pair of domains.

    CE + γ mean_{i<j} [mean((μ_i − μ_j)²) + mean((C_i − C_j)²)],   C the unbiased covariance
    """

    name = "coral"
    weighted = True
    capturable = True
    sources = 2
    images = 2
    gamma = Hyperparameter("weight of the differences", 1.0, search=LogUniform(-1, 1))

    def loss(self, network: Network, batch: Batch, draw: Any, state: Any) -> tuple[Tensor, Any]:
        z = network.features(batch.images)
        loss = batch.cross_entropy(network.head(z))
        return loss + self.gamma * _penalty(z.view(batch.domains, -1, z.shape[1])), state


def _penalty(z: Tensor) -> Tensor:
    """Return the penalty for z (domains, images, features), without covariances: ⟨C_i, C_j⟩ = ‖A_i A_jᵀ‖² / (n−1)²."""
    domains, images, features = z.shape
    means = z.mean(1)
    centred = (z - means[:, None]).flatten(0, 1)
    products = (centred @ centred.T / (images - 1)).view(domains, images, domains, images)
    covariances = mean_over_pairs((products**2).sum((1, 3))) / features**2
    return 2 * means.var(0).mean() + covariances  # the mean squared difference of pairs is twice the variance

"""CausIRL with MMD (Chevalley et al., 2022): match two random mixtures of the domains."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from mecam.hyperparameters import Hyperparameter, LogUniform
from mecam.methods.base import Batch, Method
from mecam.methods.mmd import kernel
from mecam.models.network import Network


class CausIRLMMD(Method):
    """Match the features of two groups of images, in which the domains have random shares, by MMD.

        CE + γ MMD²(z_first, z_second)

    In each domain, the first s images belong to the first group, with s uniform in 0, ..., images − 1. If a group has
    fewer than two images, there is no penalty in this step.
    """

    name = "causirlmmd"
    weighted = True
    capturable = True
    sources = 2
    images = 2
    gamma = Hyperparameter("weight of the discrepancy", 1.0, search=LogUniform(-1, 1))

    def draw(self, batch: Batch, generator: torch.Generator) -> Tensor:
        """Return 1 for the images of the first group, 0 for those of the second."""
        each = len(batch.labels) // batch.domains
        sizes = torch.randint(each, (batch.domains, 1), generator=generator)
        return (torch.arange(each) < sizes).flatten().to(torch.get_default_dtype())

    def loss(self, network: Network, batch: Batch, draw: Tensor, state: Any) -> tuple[Tensor, Any]:
        z = network.features(batch.images)
        first = draw.to(z)
        second = 1 - first
        exist = (first.sum() > 1) & (second.sum() > 1)
        penalty = self.distance(z, first / first.sum().clamp(min=1), second / second.sum().clamp(min=1))
        return batch.cross_entropy(network.head(z)) + self.gamma * exist * penalty, state

    def distance(self, z: Tensor, first: Tensor, second: Tensor) -> Tensor:
        """Return the discrepancy of two groups, each given by the share of every image in its mean."""
        return (first - second) @ kernel(z) @ (first - second)

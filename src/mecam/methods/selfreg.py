"""SelfReg, self-supervised contrastive regularization (Kim et al., 2021)."""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mecam.methods.base import Batch, Method, Setting
from mecam.models.network import Network

FEATURES = 0.3  # weight of the features' distances


class Projected(nn.Module):
    """The network and a projector of its features, which only the loss uses."""

    def __init__(self, network: Network) -> None:
        super().__init__()
        self.network = network
        features = network.num_features
        # the authors' widths for ResNet-50 and for smaller networks
        width = features if features == 2048 else 2 * features
        self.projector = nn.Sequential(
            *(nn.Linear(features, width), nn.BatchNorm1d(width), nn.ReLU()),
            *(nn.Linear(width, width), nn.BatchNorm1d(width), nn.ReLU()),
            *(nn.Linear(width, features), nn.BatchNorm1d(features)),
        ).to(network.head.weight)

    def forward(self, images: Tensor) -> Tensor:
        return cast("Tensor", self.network(images))


class SelfReg(Method):
    """Pull together the logits and the features of images of the same class.

        CE + min(CE, 1) [λ (MSE(o, o₂) + 0.3 MSE(z, f₂)) + (1−λ) (MSE(o, o₃) + 0.3 MSE(z, f₃))],   λ ~ Beta(½, ½)
        o₂, f₂: logits o and projected features P(z) in a random order within each class; o₃ = λ o₂ + (1−λ) o₃', f₃
        alike, with o₃', f₃' in another such order;   min(CE, 1) is constant in the gradient

    P is trained with the network; the public code leaves it at its initial weights.
    """

    name = "selfreg"
    weighted = True
    capturable = True
    images = 2  # the projector's batch norm needs two images

    def build(self, network: Network, setting: Setting) -> nn.Module:
        return Projected(network)

    def draw(self, batch: Batch, generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
        """Draw λ and two orders within each class."""
        lam = torch._sample_dirichlet(torch.full((2,), 0.5, dtype=torch.float64), generator=generator)[0]
        keys = torch.rand(2, len(batch.labels), generator=generator).to(batch.labels.device)
        return lam.to(batch.images), _within_class(batch.labels, keys[0]), _within_class(batch.labels, keys[1])

    def loss(
        self, network: Projected, batch: Batch, draw: tuple[Tensor, Tensor, Tensor], state: Any
    ) -> tuple[Tensor, Any]:
        lam, second, third = draw
        z = network.network.features(batch.images)
        logits = network.network.head(z)
        loss = batch.cross_entropy(logits)

        def distance(own: Tensor, other: Tensor) -> Tensor:
            mixed = lam * other[second] + (1 - lam) * other[third]
            return lam * F.mse_loss(own, other[second]) + (1 - lam) * F.mse_loss(own, mixed)

        pull = distance(logits, logits) + FEATURES * distance(z, network.projector(z))
        return loss + loss.detach().clamp(max=1) * pull, state


def _within_class(labels: Tensor, keys: Tensor) -> Tensor:
    """Return the permutation that sorts the images of each class by their keys."""
    by_key = keys.argsort()
    order = torch.empty_like(by_key)
    order[labels.argsort(stable=True)] = by_key[labels[by_key].argsort(stable=True)]
    return order

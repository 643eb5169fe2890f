"""URM, uniform risk minimization (Krishnamachari et al., 2024): uniformly distributed features."""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mecam.hyperparameters import Choice, Hyperparameter, LogUniform, Uniform
from mecam.methods.base import Batch, Method, Setting
from mecam.methods.side import Side
from mecam.models.network import Network

WIDTH = 100  # of the discriminator


class URM(Method):
    """Make the features indistinguishable from noise that is uniform in [−1, 1].

    CE(h(z)) − λ mean log D(z),   z = tanh of the network's features
    the discriminator D:  −mean log D(noise) − λ mean log(1 − D(z))
    """

    name = "urm"
    weighted = True
    capturable = True
    lam = Hyperparameter("weight of the adversary", 0.1, search=Uniform(0, 0.2))
    hidden = Hyperparameter(
        "hidden layers of the discriminator after the first", 1, integer=True, search=Choice((1, 2, 3))
    )
    lr_d = Hyperparameter("learning rate of the discriminator; not given: lr", search=LogUniform(-6, -4.5))

    def build(self, network: Network, setting: Setting) -> nn.Module:
        layers = nn.Sequential(nn.Linear(network.num_features, WIDTH), nn.LeakyReLU())
        for _ in range(self.hidden):
            layers.extend([nn.Linear(WIDTH, WIDTH), nn.LeakyReLU()])
        layers.append(nn.Linear(WIDTH, 1))
        lr = setting.adam_lr if self.lr_d is None else self.lr_d
        self.discriminator = Side(layers.to(network.head.weight), lr=lr, weight_decay=setting.weight_decay)
        self.sides = {"discriminator": self.discriminator}
        self.features = network.num_features
        return Bounded(network)

    def draw(self, batch: Batch, generator: torch.Generator) -> Tensor:
        """Draw the noise that the discriminator is shown."""
        return 2 * torch.rand(len(batch.labels), self.features, generator=generator) - 1

    def loss(self, network: Bounded, batch: Batch, draw: Tensor, state: Any) -> tuple[Tensor, Tensor]:
        z = network.features(batch.images)
        fooled = F.softplus(-self.discriminator.frozen(z)).mean()
        return batch.cross_entropy(network.classify(z)) + self.lam * fooled, z.detach()

    def after(self, network: Any, batch: Batch, draw: Tensor, state: Tensor) -> None:
        noise, z = self.discriminator.module(torch.cat([draw.to(state), state])).chunk(2)
        self.discriminator.step(F.softplus(-noise).mean() + self.lam * F.softplus(z).mean())


class Bounded(nn.Module):
    """A network whose head gets the tanh of its features."""

    def __init__(self, network: Network) -> None:
        super().__init__()
        self.network = network

    def features(self, images: Tensor) -> Tensor:
        return self.network.features(images).tanh()

    def classify(self, z: Tensor) -> Tensor:
        """Return the logits of features."""
        return cast("Tensor", self.network.head(z))

    def forward(self, images: Tensor) -> Tensor:
        return self.classify(self.features(images))

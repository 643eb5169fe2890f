"""MTL, marginal transfer learning (Blanchard et al., 2021): the classifier also gets the mean feature of the domain."""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor, nn

from mecam.hyperparameters import Choice, Hyperparameter
from mecam.methods.base import Batch, Method, Setting
from mecam.models.network import Network


class MTL(Method):
    """min Σ_d CE(h([z, e_d]), y), with e_d ← ema · mean_d(z) + (1 − ema) · e_d; predictions use e = mean of the batch

    DomainBed overwrites e with noise before the classifier; `domainbed_compat` does the same.
    """

    name = "mtl"
    weighted = True
    capturable = True
    mates = True
    ema = Hyperparameter(
        "share of this batch in a domain's embedding", 0.99, high=1, search=Choice((0.5, 0.9, 0.99, 1))
    )
    domainbed_compat = Hyperparameter("1: the embedding is noise, as in DomainBed", 0, high=1, integer=True)

    def build(self, network: Network, setting: Setting) -> nn.Module:
        self.start = network.head.weight.new_zeros(setting.domains, network.num_features)
        return Embedded(network, setting.classes, noise=bool(self.domainbed_compat))

    def initial_state(self) -> Tensor:
        return self.start.clone()

    def draw(self, batch: Batch, generator: torch.Generator) -> Tensor | None:
        if not self.domainbed_compat:
            return None
        return torch.randn(len(batch.labels), self.start.shape[1], generator=generator)

    def loss(self, network: Embedded, batch: Batch, draw: Tensor | None, state: Tensor) -> tuple[Tensor, Tensor]:
        z = network.network.features(batch.images)
        mean = z.view(batch.domains, -1, z.shape[1]).mean(1)
        embeddings = self.ema * mean + (1 - self.ema) * state
        shown = embeddings[batch.domain_labels()] if draw is None else draw.to(z)
        return batch.domains * batch.cross_entropy(network.classify(z, shown)), embeddings.detach()


class Embedded(nn.Module):
    """h([z, e]), where e is the mean feature of the batch, whose images must be from one domain."""

    def __init__(self, network: Network, classes: int, *, noise: bool) -> None:
        super().__init__()
        network.head = nn.Linear(2 * network.num_features, classes).to(network.head.weight)
        self.network, self.noise = network, noise

    def forward(self, images: Tensor) -> Tensor:
        z = self.network.features(images)
        if self.noise:  # fixed, so that predictions are repeatable
            return self.classify(z, torch.randn(z.shape, generator=torch.Generator().manual_seed(0)).to(z))
        return self.classify(z, z.mean(0, keepdim=True).expand_as(z))

    def classify(self, z: Tensor, embedding: Tensor) -> Tensor:
        """Return the logits of features, given an embedding for each."""
        return cast("Tensor", self.network.head(torch.cat([z, embedding], 1)))

"""Mixup between domains (Zhang et al., 2018; Yan et al., 2020)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from mecam.hyperparameters import Hyperparameter, LogUniform
from mecam.methods.base import Batch, Method
from mecam.models.network import Network


class Mixup(Method):
    """Blend the images and the losses of two domains.

        x = λ x_i + (1−λ) x_j;   λ CE(h(x), y_i) + (1−λ) CE(h(x), y_j),   λ ~ Beta(α, α) for each pair of domains

    The pairs are neighbours on a random circle of all domains; the mean is over the pairs.
    """

    name = "mixup"
    weighted = True
    capturable = True
    sources = 2
    alpha = Hyperparameter(
        "of Beta(α, α), from which shares are drawn; small: mostly one domain",
        0.2,
        open_low=True,
        search=LogUniform(-1, 1),
    )

    def draw(self, batch: Batch, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Draw each image's partner and its own share of the blend."""
        each = len(batch.labels) // batch.domains
        circle = torch.randperm(batch.domains, generator=generator)
        following = torch.empty_like(circle)
        following[circle] = circle.roll(-1)
        partners = (each * following[:, None] + torch.arange(each)).flatten()
        concentration = torch.full((batch.domains, 2), self.alpha, dtype=torch.float64)
        shares = torch._sample_dirichlet(concentration, generator=generator)[:, 0].repeat_interleave(each)
        return partners.to(batch.images.device), shares.to(batch.images)

    def loss(self, network: Network, batch: Batch, draw: tuple[Tensor, Tensor], state: Any) -> tuple[Tensor, Any]:
        partners, shares = draw
        logits = network(torch.lerp(batch.images[partners], batch.images, shares.view(-1, 1, 1, 1)))
        own = batch.losses(logits)
        other = batch.losses(logits, batch.labels[partners])
        return torch.lerp(other, own, shares).mean(), state

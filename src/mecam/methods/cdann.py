"""CDANN, conditional domain-adversarial training (Li et al., 2018): DANN with a class-conditional discriminator."""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor, nn

from mecam.methods.base import Batch, Setting
from mecam.methods.dann import DANN


class CDANN(DANN):
    """DANN with a discriminator of z + E_y, in which each class present in the batch has the same weight

        D = Σᵢ CE(domain)ᵢ / (images of class yᵢ · classes present) + gp · meanᵢ ‖∂ Σ CE(domain) / ∂zᵢ‖²

    E is an embedding of the classes, trained with the discriminator.
    """

    name = "cdann"
    capturable = True

    def make_discriminator(self, features: int, setting: Setting) -> nn.Module:
        return Conditional(super().make_discriminator(features, setting), setting.classes, features)

    def inputs(self, z: Tensor, batch: Batch) -> tuple[Tensor, ...]:
        return z, batch.labels

    def mean(self, each: Tensor, batch: Batch) -> Tensor:
        same = batch.labels[:, None] == batch.labels
        share = 1 / same.sum(1, dtype=each.dtype)  # per image; the shares sum to the number of classes present
        return torch.sum(each * share) / share.sum()


class Conditional(nn.Module):
    """A discriminator of features shifted by an embedding of their class."""

    def __init__(self, discriminator: nn.Module, classes: int, features: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(classes, features)
        self.discriminator = discriminator

    def forward(self, z: Tensor, labels: Tensor) -> Tensor:
        return cast("Tensor", self.discriminator(z + self.embedding(labels)))

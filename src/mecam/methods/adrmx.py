"""ADRMX, additive disentanglement of domain features with remix (Demirel et al., 2023)."""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mecam.hyperparameters import Hyperparameter
from mecam.methods._pair import double
from mecam.methods.base import Batch, Setting
from mecam.methods.dann import Turns
from mecam.methods.side import Side, mlp
from mecam.models.network import Network

TEMPERATURE = 0.07


class ADRMX(Turns):
    """Subtract domain features from label features, and classify both the label features and the difference.

        CE(h₁(z)) + CE(h₂(u)) + CE(g(s), domain) + remix + contrast(z) + contrast(u) − λ CE(D(u), domain),   u = z − s

    z and s are the features of two networks; predictions are h₁(z). The discriminator D trains in k of k + 1 steps, the
    networks in the others. remix is the mean over the classes of CE(h₁(uᵢ + sⱼ)) for a random image i of the class and
    a random image j of the same class in another domain. contrast is the supervised contrastive loss of all
    images of the batch, τ = 0.07.
    """

    name = "adrmx"
    sources = 2
    lam = Hyperparameter("weight of the adversary", 0.75)
    contrast = Hyperparameter("weight of the contrastive losses", 1.0)
    remix = Hyperparameter("weight of the remixed features' loss", 1.0)
    domain = Hyperparameter("weight of the domain classifier's loss", 1.0)
    k = Hyperparameter("discriminator steps per network step", 2, low=1, integer=True)
    beta1 = Hyperparameter("Adam's first beta, on both sides", 0.5, high=1, open_high=True)
    width = Hyperparameter("width of the discriminator", 256, low=1, integer=True)
    depth = Hyperparameter("layers of the discriminator", 9, low=1, integer=True)

    def build(self, network: Network, setting: Setting) -> nn.Module:
        discriminator = mlp(network.num_features, setting.domains, width=self.width, depth=self.depth)
        self.discriminator = Side(discriminator.to(network.head.weight), lr=setting.adam_lr, betas=self.betas)
        self.sides = {"discriminator": self.discriminator}
        return Disentangled(network, setting)

    def draw(self, batch: Batch, generator: torch.Generator) -> Tensor:
        """Draw two random keys per image, by which the images to remix are chosen."""
        return torch.rand(2, len(batch.labels), generator=generator)

    def loss(self, network: Disentangled, batch: Batch, draw: Tensor, state: Any) -> tuple[Tensor, Any]:
        z, s = network.features(batch.images)
        u, domains, labels = z - s, batch.domain_labels(), batch.labels
        loss = F.cross_entropy(network.label_head(z), labels) + F.cross_entropy(network.difference_head(u), labels)
        loss = loss + self.domain * F.cross_entropy(network.domain_head(s), domains)
        loss = loss + self.contrast * (_contrast(z, labels) + _contrast(u, labels))
        loss = loss + self.remix * self._remixed(network, u, s, batch, draw.to(z))
        return loss - self.lam * F.cross_entropy(self.discriminator.frozen(u), domains), state

    def _remixed(self, network: Disentangled, u: Tensor, s: Tensor, batch: Batch, keys: Tensor) -> Tensor:
        """Return the loss of a remixed image per class, on average."""
        labels, domains, classes = batch.labels, batch.domain_labels(), network.classes
        same = labels == torch.arange(classes, device=labels.device)[:, None]  # (class, image)
        elsewhere = same[:, :, None] & same[:, None] & (domains[:, None] != domains)  # (class, image, other image)
        first = keys[0].masked_fill(~elsewhere.any(2), -1).argmax(1)
        partners = elsewhere.gather(1, first.view(-1, 1, 1).expand(-1, 1, len(labels)))[:, 0]
        second = keys[1].masked_fill(~partners, -1).argmax(1)
        each = F.cross_entropy(
            network.label_head(u[first] + s[second]), torch.arange(classes, device=u.device), reduction="none"
        )
        return (each * partners.any(1)).sum() / classes

    def after(self, network: Any, batch: Batch, draw: Any, state: Any) -> Any:
        if self.declines(batch.step):
            with torch.no_grad():
                z, s = network.features(batch.images)
            self.discriminator.step(F.cross_entropy(self.discriminator.module(z - s), batch.domain_labels()))
        return state


class Disentangled(nn.Module):
    """A network with two featurizers and nonlinear heads; predictions use the features of the first."""

    def __init__(self, network: Network, setting: Setting) -> None:
        super().__init__()
        self.classes, features, like = setting.classes, network.num_features, network.head.weight
        self.label_head = _nonlinear(features, setting.classes).to(like)
        self.difference_head = _nonlinear(features, setting.classes).to(like)
        self.domain_head = _nonlinear(features, setting.domains).to(like)
        double(network, "label", "domain")
        self.network = network
        self.network.head = cast("Any", nn.Identity())  # the heads above are in its place

    def features(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Return label features and domain features."""
        z, s = self.network.features(images).chunk(2, 1)
        return z, s

    def forward(self, images: Tensor) -> Tensor:
        return cast("Tensor", self.label_head(self.features(images)[0]))


def _nonlinear(features: int, outputs: int) -> nn.Sequential:
    half, quarter = max(features // 2, 1), max(features // 4, 1)
    return nn.Sequential(
        nn.Linear(features, half), nn.ReLU(), nn.Linear(half, quarter), nn.ReLU(), nn.Linear(quarter, outputs)
    )


def _contrast(z: Tensor, labels: Tensor) -> Tensor:
    """Return the supervised contrastive loss of the images whose class another image of the batch has."""
    length = z.square().sum(1, keepdim=True)
    there = length > 0  # both networks start from the same weights, so u starts at 0, where F.normalize has no Hessian
    z = torch.where(there, z * torch.where(there, length, 1).rsqrt(), 0)
    alone = torch.eye(len(z), dtype=torch.bool, device=z.device)
    log_shares = (z @ z.T / TEMPERATURE).masked_fill(alone, -torch.inf).log_softmax(1).masked_fill(alone, 0)
    positive = (labels[:, None] == labels) & ~alone
    count = positive.sum(1)
    each = -(log_shares * positive).sum(1) / count.clamp(min=1)
    return each.sum() / (count > 0).sum().clamp(min=1)

"""DANN, domain-adversarial training (Ganin et al., 2016): features that do not reveal the domain."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mecam.hyperparameters import Choice, Hyperparameter, LogUniform
from mecam.methods.base import Batch, Method, Setting
from mecam.methods.side import Side, mlp
from mecam.models.network import Network


class Turns(Method):
    """A method whose network trains in one of 1 + k steps, and its discriminator in the other k."""

    k: Hyperparameter
    beta1: Hyperparameter

    @property
    def betas(self) -> tuple[float, float]:
        return self.beta1, 0.9

    @property
    def optimizer_settings(self) -> Mapping[str, Any]:  # type: ignore[override]
        return {"betas": self.betas}

    def declines(self, step: int) -> bool:
        declined: bool = (step + 1) % (1 + self.k) < self.k
        return declined


class DANN(Turns):
    """min CE(h(z), y) − λ D over the network, min D over a discriminator of domains

        D = CE(domain) + gp · meanᵢ ‖∂ Σ CE(domain) / ∂zᵢ‖²

    They take turns: in every 1 + k steps, the network trains in one and the discriminator in k.
    lr and weight_decay are the network's, lr_d and weight_decay_d the discriminator's.
    """

    name = "dann"
    weighted = True
    accumulates = True
    capturable = True
    sources = 2
    lam = Hyperparameter("weight of the adversary", 1.0, search=LogUniform(-2, 2))
    gp = Hyperparameter("weight of the discriminator's gradient penalty", 0.0, search=LogUniform(-2, 1))
    k = Hyperparameter("discriminator steps per network step", 1, low=1, integer=True, search=LogUniform(0, 3, base=2))
    beta1 = Hyperparameter("Adam's first beta, on both sides", 0.5, high=1, open_high=True, search=Choice((0, 0.5)))
    width = Hyperparameter("width of the discriminator", 256, low=1, integer=True, search=LogUniform(6, 10, base=2))
    depth = Hyperparameter("layers of the discriminator", 3, low=1, integer=True, search=Choice((3, 4, 5)))
    dropout = Hyperparameter("dropout in the discriminator", 0.0, high=1, open_high=True, search=Choice((0, 0.1, 0.5)))
    lr_d = Hyperparameter("learning rate of the discriminator; not given: lr", search=LogUniform(-5, -3.5))
    weight_decay_d = Hyperparameter("weight decay of the discriminator", 0.0, search=LogUniform(-6, -2))

    def build(self, network: Network, setting: Setting) -> nn.Module:
        module = self.make_discriminator(network.num_features, setting).to(network.head.weight)
        lr = setting.adam_lr if self.lr_d is None else self.lr_d
        self.discriminator = Side(module, lr=lr, weight_decay=self.weight_decay_d, betas=self.betas)
        self.sides = {"discriminator": self.discriminator}
        return network

    def make_discriminator(self, features: int, setting: Setting) -> nn.Module:
        """Return a network from features to logits of the domains."""
        return mlp(features, setting.domains, width=self.width, depth=self.depth, dropout=self.dropout)

    def loss(self, network: Network, batch: Batch, draw: Any, state: Any) -> tuple[Tensor, Any]:
        z = network.features(batch.images)
        classified = batch.cross_entropy(network.head(z))
        return classified - self.lam * self.discriminator_loss(self.discriminator.frozen, z, batch), state

    def after(self, network: Network, batch: Batch, draw: Any, state: Any) -> Any:
        if self.declines(batch.step):
            with torch.no_grad():
                z = network.features(batch.images)
            z.requires_grad_(self.gp > 0)
            self.discriminator.step(self.discriminator_loss(self.discriminator.module, z, batch))
        return state

    def discriminator_loss(self, discriminate: Callable[..., Tensor], z: Tensor, batch: Batch) -> Tensor:
        """Return the discriminator's loss D at these features."""
        each = F.cross_entropy(discriminate(*self.inputs(z, batch)), batch.domain_labels(), reduction="none")
        loss = self.mean(each, batch)
        if self.gp:
            (slope,) = torch.autograd.grad(each.sum(), z, create_graph=True)
            loss = loss + self.gp * slope.square().sum(1).mean()
        return loss

    def inputs(self, z: Tensor, batch: Batch) -> tuple[Tensor, ...]:
        """Return the discriminator's inputs."""
        return (z,)

    def mean(self, each: Tensor, batch: Batch) -> Tensor:
        """Average the losses over the images."""
        return each.mean()

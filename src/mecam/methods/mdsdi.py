"""mDSDI, meta domain-specific and domain-invariant features (Bui et al., 2021): one featurizer for each kind."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mecam.hyperparameters import Hyperparameter
from mecam.methods._gradients import Named, after_first_adam_step, gradient_at, gradient_of, spare_buffers, trained
from mecam.methods._pair import double
from mecam.methods.base import Batch, Method, Setting
from mecam.methods.side import Side, mlp
from mecam.models.network import Network


class MDSDI(Method):
    """min L + (1/S) Σ_j [CE_rest(ψ) + CE_j(ψ − one Adam step on CE_rest)], rest: the sources without j

        L = CE(h([zᵢ, zₛ]), y) − CE(disc(zᵢ), domain) + CE(linear(zₛ), domain) + covariance of zᵢ and zₛ

    zᵢ and zₛ are the features of two networks, ψ is that of zₛ and h. The original takes one Adam step down L and,
    from where that leads, a second one down the meta loss (first order); here both gradients are taken at the same
    weights and added, so that any optimizer can take one step. The original's covariance penalty, the mean of
    ((zᵢ)_a (zₛ)_b)² over images and pairs of centred features, is a product of two means for each image.
    """

    name = "mdsdi"
    weighted = True
    sources = 2
    surgery = True
    covariance = Hyperparameter("0: the penalty as published, 1: ‖covariance matrix‖² itself", 0, high=1, integer=True)

    def build(self, network: Network, setting: Setting) -> nn.Module:
        features, like = network.num_features, network.head.weight
        double(network, "invariant", "specific")
        network.head = nn.Linear(2 * features, setting.classes).to(like)
        network.add_module("domain_head", nn.Linear(features, setting.domains).to(like))
        discriminator = mlp(features, setting.domains, width=features, depth=3).to(like)
        self.discriminator = Side(discriminator, lr=setting.adam_lr, weight_decay=setting.weight_decay)
        self.sides = {"discriminator": self.discriminator}
        self.lr, self.weight_decay = setting.adam_lr, setting.weight_decay
        return network

    def loss(self, network: Any, batch: Batch, draw: Any, state: Any) -> tuple[Tensor, Any]:
        """Return L, without the meta loss."""
        z = network.features(batch.images)
        classified = batch.cross_entropy(network.head(z))
        return classified + self.disentangled(network, batch, z), z.chunk(2, 1)[0].detach()

    def gradient(self, network: Any, batch: Batch, draw: Any, state: Any, *, graph: bool = False) -> tuple[Tensor, Any]:
        z = network.features(batch.images)
        each = batch.losses(network.head(z))
        psi = {n: p for n, p in trained(network).items() if n.startswith(("featurizer.specific.", "head."))}
        slopes = [gradient_of(part.mean(), psi, keep_graph=True) for part in each.chunk(batch.domains)]
        loss = each.mean() + self.disentangled(network, batch, z)
        loss.backward()  # type: ignore[no-untyped-call]
        buffers = spare_buffers(network)
        for held_out, (images, labels) in enumerate(batch.by_domain()):
            rest = _mean([*slopes[:held_out], *slopes[held_out + 1 :]])
            stepped = after_first_adam_step(psi, rest, lr=self.lr, weight_decay=self.weight_decay)
            there = gradient_at(network, stepped, buffers, images, labels, batch.class_weights)
            for name, parameter in psi.items():
                if parameter.grad is not None:
                    parameter.grad += (rest[name] + there[name]) / batch.domains
        return loss.detach(), z.chunk(2, 1)[0].detach()

    def after(self, network: Any, batch: Batch, draw: Any, state: Tensor) -> None:
        self.discriminator.step(F.cross_entropy(self.discriminator.module(state), batch.domain_labels()))

    def disentangled(self, network: Any, batch: Batch, z: Tensor) -> Tensor:
        """Return the terms of L besides the classification."""
        invariant, specific = z.chunk(2, 1)
        domains = batch.domain_labels()
        adversary = F.cross_entropy(self.discriminator.frozen(invariant), domains)
        return F.cross_entropy(network.domain_head(specific), domains) - adversary + self.penalty(invariant, specific)

    def penalty(self, invariant: Tensor, specific: Tensor) -> Tensor:
        a, b = invariant - invariant.mean(0), specific - specific.mean(0)
        if self.covariance:  # ‖AᵀB‖² = Σ (AAᵀ)(BBᵀ): images by images, not features by features
            return torch.sum((a @ a.T) * (b @ b.T)) / (len(a) - 1) ** 2
        return torch.mean(a.square().mean(1) * b.square().mean(1))


def _mean(several: Sequence[Named]) -> Named:
    return {name: torch.stack([one[name] for one in several]).mean(0) for name in several[0]}

"""IGA, inter-environmental gradient alignment (Koyama and Yamaguchi, 2020)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from mecam.hyperparameters import Hyperparameter, LogUniform
from mecam.methods._gradients import trained
from mecam.methods.base import Batch, Method
from mecam.models.network import Network


class IGA(Method):
    """Penalize the variance of the domains' gradients.

        mean_d CE_d + λ Σ_d ‖∇CE_d − mean_e ∇CE_e‖²

    Its gradient takes second derivatives of the network: a step costs several plain ones, and cannot be captured or
    compiled.
    """

    name = "iga"
    weighted = True
    sources = 2
    on_features = True
    lam = Hyperparameter("weight of the gradients' variance", 1000.0, search=LogUniform(1, 5))

    def loss(self, network: Network, batch: Batch, draw: Any, state: Any) -> tuple[Tensor, Any]:
        weights = list(trained(network).values())
        losses = batch.domain_losses(network(batch.images))
        gradients = [torch.autograd.grad(loss, weights, create_graph=True) for loss in losses]
        spread = sum(
            batch.domains * torch.stack(of_one).var(0, correction=0).sum() for of_one in zip(*gradients, strict=True)
        )
        return losses.mean() + self.lam * spread, state

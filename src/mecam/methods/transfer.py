"""Transfer: training for transferability (Zhang et al., 2021)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mecam.hyperparameters import Choice, Hyperparameter, LogUniform, Uniform
from mecam.methods.base import Batch, Method, Setting
from mecam.models.network import Network


class Transfer(Method):
    """Minimize the largest difference between the domains' losses over all heads close to the trained one.

        CE(h(z)) + λ [max_d CE_d(h′(z)) − min_d CE_d(h′(z))],   ‖h′ − h‖ ≤ δ

    h′ is found in the step before: it starts from h and takes k steps of plain gradient ascent on λ times the
    difference, each followed by the projection to the ball. The original takes one step per term of the objective, and
    looks for h′ after them; here all gradients are taken at the same weights.
    """

    name = "transfer"
    weighted = True
    capturable = True
    on_features = True
    sources = 2
    lam = Hyperparameter("weight of the difference", 1.0, search=LogUniform(-2, 1))
    delta = Hyperparameter("δ, the radius of the ball", 2.0, search=Uniform(0.1, 3))
    k = Hyperparameter("steps of ascent", 10, low=1, integer=True, search=Choice((1, 2, 5)))
    ascent_lr = Hyperparameter("learning rate of the ascent", 1e-3, search=LogUniform(-4.5, -2.5))

    def build(self, network: Network, setting: Setting) -> nn.Module:
        self.start = _weights(network.head).clone()
        return network

    def initial_state(self) -> Tensor:
        return self.start

    def loss(self, network: Network, batch: Batch, draw: Any, state: Tensor) -> tuple[Tensor, Tensor]:
        z = network.features(batch.images)
        loss = batch.cross_entropy(network.head(z)) + self.lam * _gap(state, z, batch)
        return loss, self._worst_head(_weights(network.head), z.detach(), batch)

    def _worst_head(self, center: Tensor, z: Tensor, batch: Batch) -> Tensor:
        """Return the head after the ascent from `center`."""
        head = center
        for _ in range(self.k):
            with torch.enable_grad():
                place = head.detach().requires_grad_()
                (slope,) = torch.autograd.grad(_gap(place, z, batch), place)
            away = head + self.ascent_lr * self.lam * slope - center
            head = center + away * (self.delta / away.norm().clamp(min=1e-12)).clamp(max=1)
        return head


def _weights(head: nn.Linear) -> Tensor:
    """Return weights and bias as one matrix."""
    return torch.cat([head.weight.detach(), head.bias.detach()[:, None]], 1)


def _gap(head: Tensor, z: Tensor, batch: Batch) -> Tensor:
    """Return the difference between the largest and the smallest loss of a domain."""
    losses = batch.domain_losses(F.linear(z, head[:, :-1], head[:, -1]))
    return losses.amax() - losses.amin()

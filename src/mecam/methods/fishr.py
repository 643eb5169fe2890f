"""Fishr: invariant variances of gradients (Rame et al., 2022)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mecam.hyperparameters import Hyperparameter, LogUniform, Uniform
from mecam.methods._anneal import Annealed, annealing_step, penalty_weight
from mecam.methods.base import Batch, Setting
from mecam.models.network import Network


class Fishr(Annealed):
    """Match the domains' variances of the head's gradient over images.

        CE + w mean_d mean((u_d − mean_e u_e)²),   u_d = m_d / (1−ema),   m_d ← ema m_d + (1−ema) v_d
        v_d = mean_i((p−y)² z²) − mean_i((p−y) z)²,   per entry of the head (z = 1 for its bias)

    w = 0, λ from the annealing step on. The running m starts at 0. Dividing by 1−ema leaves v_d the factor 1 in
    u_d, so that the scale of the gradient does not depend on ema. The head is linear: its gradients per image are outer
    products, so matrix products suffice.
    """

    name = "fishr"
    weighted = True
    capturable = True
    on_features = True
    sources = 2
    images = 2
    before = 0.0
    lam = penalty_weight(1000.0, LogUniform(1, 4))
    anneal = annealing_step(1500.0, Uniform(0, 5000))
    ema = Hyperparameter(
        "share of the running variances that a step keeps", 0.95, high=1, open_high=True, search=Uniform(0.9, 0.99)
    )

    def build(self, network: Network, setting: Setting) -> nn.Module:
        self.zeros = network.head.weight.new_zeros(setting.domains, setting.classes, network.num_features + 1)
        return super().build(network, setting)

    def initial_state(self) -> Tensor:
        return self.zeros

    def loss(self, network: Network, batch: Batch, draw: Any, state: Tensor) -> tuple[Tensor, Tensor]:
        z = network.features(batch.images)
        logits = network.head(z)
        running = self.ema * state + (1 - self.ema) * _variances(z, logits, batch)
        loss = batch.cross_entropy(logits)
        weight = self.weight(batch.step)
        if weight:
            loss = loss + weight * (running / (1 - self.ema)).var(0, correction=0).mean()
        return loss, running.detach()


def _variances(z: Tensor, logits: Tensor, batch: Batch) -> Tensor:
    """Return the variance of the head's gradient over each domain's images: (domains, classes, features and bias)."""
    each = len(z) // batch.domains
    errors = batch.weigh(logits.softmax(1) - F.one_hot(batch.labels, logits.shape[1])).view(batch.domains, each, -1).mT
    inputs = torch.cat([z, z.new_ones(len(z), 1)], 1).view(batch.domains, each, -1)
    means: Tensor = errors @ inputs / each
    return errors**2 @ inputs**2 / each - means**2

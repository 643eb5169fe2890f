"""Fishr: invariant variances of gradients (Rame et al., 2022)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mecam.methods._anneal import Annealed
from mecam.methods.base import Batch, Setting
from mecam.models.network import Network
from mecam.optim.hyperparameters import Hyperparameter, LogUniform, Uniform


class Fishr(Annealed):
    """Evens out, between domains, the variance over images of the head's gradient.

        CE + w mean_d mean((u_d − mean_e u_e)²),   u_d = m_d / (1−ema),   m_d ← ema m_d + (1−ema) v_d
        v_d = mean_i((p−y)² z²) − mean_i((p−y) z)²,   an entry of the head at a time (z = 1 for its bias)

    w = 0, λ from the annealing step on. The running m starts at 0. Dividing by 1−ema leaves v_d the factor 1 in
    u_d, so that the gradient's size does not depend on ema. The head is linear: its gradients for single images are
    outer products, and nothing but matrix products is needed.
    """

    name: ClassVar[str] = "fishr"
    recordable: ClassVar[bool] = True
    sources: ClassVar[int] = 2
    images: ClassVar[int] = 2
    compares: ClassVar[bool] = True
    before: ClassVar[float] = 0.0
    hyperparameters: ClassVar[Mapping[str, Hyperparameter]] = {
        "lam": Hyperparameter("weight of the penalty, once annealed", search=LogUniform(1, 4)),
        "anneal": Hyperparameter(
            "step at which the penalty takes this weight; scaled down in runs shorter than 5,000 steps",
            search=Uniform(0, 5000),
        ),
        "ema": Hyperparameter(
            "share of the running variances that a step keeps", high=1, open_high=True, search=Uniform(0.9, 0.99)
        ),
    }

    def __init__(self, *, lam: float = 1000.0, anneal: float = 1500.0, ema: float = 0.95) -> None:
        super().__init__(lam=lam, anneal=anneal)
        self.ema = float(ema)

    def build(self, network: Network, setting: Setting) -> nn.Module:
        self.zeros = network.head.weight.new_zeros(setting.domains, setting.classes, network.num_features + 1)
        return super().build(network, setting)

    def initial_state(self) -> Tensor:
        return self.zeros

    def loss(self, network: Network, batch: Batch, draw: Any, state: Tensor) -> tuple[Tensor, Tensor]:  # noqa: ARG002
        z = network.features(batch.images)
        logits = network.head(z)
        running = self.ema * state + (1 - self.ema) * _variances(z, logits, batch)
        loss = F.cross_entropy(logits, batch.labels)
        weight = self.weight(batch.step)
        if weight:
            loss = loss + weight * (running / (1 - self.ema)).var(0, correction=0).mean()
        return loss, running.detach()


def _variances(z: Tensor, logits: Tensor, batch: Batch) -> Tensor:
    """Of the head's gradient over each domain's images: (domains, classes, features and bias)."""
    each = len(z) // batch.domains
    errors = (logits.softmax(1) - F.one_hot(batch.labels, logits.shape[1])).view(batch.domains, each, -1).mT
    inputs = torch.cat([z, z.new_ones(len(z), 1)], 1).view(batch.domains, each, -1)
    means: Tensor = errors @ inputs / each
    return errors**2 @ inputs**2 / each - means**2

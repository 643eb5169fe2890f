"""RDM, risk distribution matching (Nguyen et al., 2024)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from mecam.hyperparameters import Uniform
from mecam.methods._anneal import Slowed, annealing_step, late_learning_rate, penalty_weight
from mecam.methods.base import Batch
from mecam.methods.mmd import kernel
from mecam.models.network import Network

RATE = 0.3  # of the published learning rates: 1.5e-5 after the annealing step, 5e-5 before


class RDM(Slowed):
    """Match the distribution of the losses in the worst domain to that of all images.

        mean_d CE_d + w MMD²(r_worst, r) + v [Var(r) + Var(r_worst)],   r the losses of the images
        w = v = 0, λ and λ_v from the annealing step on;   the kernel of MMD has c = 10⁻⁴, ..., 10³

    The authors use 88 images per domain, and a smaller learning rate from the annealing step on.
    """

    name = "rdm"
    capturable = True
    on_features = True
    sources = 2
    images = 2
    share = RATE
    before = 0.0
    lam = penalty_weight(5.0, Uniform(1, 10))
    anneal = annealing_step(1500.0, Uniform(800, 2700))
    variance = penalty_weight(0.004, Uniform(0.001, 0.007), of="variances")
    late_lr = late_learning_rate(RATE, Uniform(8e-6, 2e-5))

    def loss(self, network: Network, batch: Batch, draw: Any, state: Any) -> tuple[Tensor, Any]:
        risks = F.cross_entropy(network(batch.images), batch.labels, reduction="none")
        loss = risks.mean()
        if batch.step < self.start:
            return loss, state
        domains = risks.view(batch.domains, -1)
        worst = domains.index_select(0, domains.detach().mean(1).argmax(0, keepdim=True))[0]
        spread = risks.var() + worst.var()
        return loss + self.lam * _discrepancy(worst, risks) + self.variance * spread, state


def _discrepancy(some: Tensor, every: Tensor) -> Tensor:
    """Return MMD²(some, every) = aᵀ K a, with a = 1/n on the first and −1/m on the second."""
    shares = torch.cat([torch.full_like(some, 1 / len(some)), torch.full_like(every, -1 / len(every))])
    return shares.detach() @ kernel(torch.cat([some, every])[:, None], least=-4) @ shares.detach()

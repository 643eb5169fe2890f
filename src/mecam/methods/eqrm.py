"""EQRM, empirical quantile risk minimization (Eastwood et al., 2022)."""

from __future__ import annotations

import math
from statistics import NormalDist
from typing import Any

import torch
from torch import Tensor

from mecam.hyperparameters import Hyperparameter, LogUniform, Uniform
from mecam.methods._anneal import Slowed, late_learning_rate
from mecam.methods.base import Batch
from mecam.models.network import Network

RATE = 0.02  # of the published learning rates: 1e-6 after the annealing step, 5e-5 before
HALVINGS = 60
EPSILON = 1e-12  # added to the variance of the losses, whose root has no gradient at 0


class EQRM(Slowed):
    """Minimize a quantile of the domains' losses instead of their mean.

        mean_d CE_d before the annealing step, then the α-quantile q of the losses' density:
        mean_d Φ((q − CE_d) / h) = α,   h = 1.06 Std(CE) S^(−1/5),   the unbiased deviation

    The density is a sum of S Gaussian kernels. The gradient of q is that of the equation, the bandwidth included.
    """

    name = "eqrm"
    weighted = True
    capturable = True
    on_features = True
    sources = 2
    share = RATE
    quantile = Hyperparameter(
        "α, the share of domains whose loss is at most q",
        0.75,
        high=1,
        open_low=True,
        open_high=True,
        search=Uniform(0.5, 0.99),
    )
    anneal = Hyperparameter(
        "step of the change from the mean; scaled down in runs shorter than 5,000 steps",
        2500.0,
        search=LogUniform(2.5, 3.5),
    )
    late_lr = late_learning_rate(RATE, LogUniform(-7, -5))

    def loss(self, network: Network, batch: Batch, draw: Any, state: Any) -> tuple[Tensor, Any]:
        risks = batch.domain_losses(network(batch.images))
        return risks.mean() if batch.step < self.start else _quantile(risks, self.quantile), state


def _quantile(risks: Tensor, level: float) -> Tensor:
    """Return the quantile of the kernel density of these values."""
    bandwidth = 1.06 * (risks.var() + EPSILON).sqrt() * len(risks) ** -0.2
    with torch.no_grad():  # by bisection, between the quantiles of the outer kernels
        offset = NormalDist().inv_cdf(level) * bandwidth
        low, high = risks.min() + offset, risks.max() + offset
        for _ in range(HALVINGS):
            middle = (low + high) / 2
            above = torch.special.ndtr((middle - risks) / bandwidth).mean() > level
            low, high = torch.where(above, low, middle), torch.where(above, middle, high)
        root = (low + high) / 2
        slope = (-0.5 * ((root - risks) / bandwidth).square()).exp().mean() / (math.sqrt(2 * math.pi) * bandwidth)
    share: Tensor = torch.special.ndtr((root - risks) / bandwidth).mean()
    quantile: Tensor = root - (share - share.detach()) / slope  # the gradient is by the implicit function theorem
    return quantile
